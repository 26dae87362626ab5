"""The two readings of the text: one to train a tokenizer, where none is given, and one to encode it in pieces.

Whatever is there already, from a run that was killed or from another shard, is not made again.
"""

import json
import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from tokenizers import Tokenizer

from minibert.data.pieces import NumberedTexts, cut, encoder_of_pieces, piece_path
from minibert.data.prepare_config import PrepareConfig
from minibert.data.progress import Notify, Track
from minibert.data.publish import sync
from minibert.data.sample import Sample, SampleTask, counter
from minibert.data.sources import Counts, Document, describe_sources, read_documents
from minibert.data.tokenizer import load_tokenizer, save_tokenizer, train_on_chunks
from minibert.data.work_folder import Shard, WorkFolder, held
from minibert.data.workers import in_order
from minibert.errors import UserError
from minibert.files import write_whole

COUNTED_AT_ONCE = 4_000_000
"""Characters whose words a process counts before it sends them: fewer would mean the same words more often."""

Sources = list[dict[str, Any]]


def encode_text(folder: WorkFolder, config: PrepareConfig, sources: Sources, *, track: Track, notify: Notify) -> int:
    """Encode all pieces of the text, or those of the shard; how many pieces the whole text has.

    Raises `UserError` where the `sources` are not those any more that they were when the work began.
    """
    shard = config.as_shard()
    _make_tokenizer(folder, config, sources, track=track, notify=notify)
    if folder.reading.is_file() and not missing_pieces(folder, read_pieces(folder), shard):
        return read_pieces(folder)
    reading = _Reading(folder, shard)
    documents = track(_read(config, reading.left_out), "encoding", _documents_before(folder))
    encode = partial(
        encoder_of_pieces, folder.tokenizer, folder.pieces, language=config.language, mark_words=config.mark_words
    )
    folder.pieces.mkdir(exist_ok=True)
    with closing(in_order(encode, reading.wanted(documents), processes=config.count_processes())) as written:
        for _ in written:
            pass
    _check_unchanged(config, sources)
    reading.save()
    return reading.pieces


def read_before(folder: WorkFolder) -> int:
    """How many pieces the text has, when shards have encoded all. Raises `UserError` where some are missing."""
    if not folder.reading.is_file():
        raise UserError("there is nothing to merge: of these sources and settings no shard was encoded to its end")
    pieces, count = read_pieces(folder), folder.shard_count()
    if missing := shards_of(missing_pieces(folder, pieces), count):
        names = ", ".join(f"--shard {shard}" for shard in missing)
        raise UserError(f"{len(missing)} of {count} shards are missing or not complete: {names}; encode them first")
    return pieces


def missing_pieces(folder: WorkFolder, pieces: int, shard: Shard | None = None) -> list[int]:
    """The numbers of the pieces, of all or of a shard, that are not there."""
    wanted = (number for number in range(pieces) if shard is None or shard.has(number))
    return [number for number in wanted if not piece_path(folder.pieces, number).is_file()]


def shards_of(numbers: Sequence[int], count: int) -> list[Shard]:
    """The shards, of so many, that these pieces belong to."""
    return [Shard(index, count) for index in sorted({number % count for number in numbers})]


def read_pieces(folder: WorkFolder) -> int:
    """How many pieces the text has, once it was read to its end."""
    return int(json.loads(folder.reading.read_text(encoding="utf-8"))["pieces"])


def _make_tokenizer(
    folder: WorkFolder, config: PrepareConfig, sources: Sources, *, track: Track, notify: Notify
) -> None:
    """Train a tokenizer, or take the given one; whoever is first does it for all shards."""
    with held(folder.path / "tokenizer.lock", notify, "another shard trains the tokenizer; waiting for it"):
        if folder.tokenizer.is_dir():
            return
        notes: list[str] = []
        if config.tokenizer is not None:
            tokenizer, documents = load_tokenizer(config.tokenizer), None
        else:
            sample = _take_sample(config, track)
            _check_unchanged(config, sources)
            tokenizer, notes = _train(config, sample)
            documents = sample.documents
        partial_ = folder.path / "tokenizer.partial"
        shutil.rmtree(partial_, ignore_errors=True)
        save_tokenizer(tokenizer, partial_)
        write_whole(folder.notes, json.dumps({"notes": notes, "documents": documents}))
        sync(partial_)
        partial_.rename(folder.tokenizer)


def _take_sample(config: PrepareConfig, track: Track) -> Sample:
    sample = Sample(config.tokenizer_sample)
    portions = cut(track(_read(config, Counts()), "counting words", None), COUNTED_AT_ONCE)
    tasks = (SampleTask(texts, sample.lowest) for texts in portions)
    with closing(in_order(counter, tasks, processes=config.count_processes())) as parts:
        for part in parts:
            sample.add(part)
    return sample


def _train(config: PrepareConfig, sample: Sample) -> tuple[Tokenizer, list[str]]:
    """The tokenizer, and what was odd about it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokenizer = train_on_chunks(sample.chunks(), config.for_tokenizer())
    return tokenizer, [str(warning.message) for warning in caught if warning.category is UserWarning]


def _read(config: PrepareConfig, counts: Counts) -> Iterator[Document]:
    return read_documents(
        config.sources, text_field=config.text_field, encoding_errors=config.encoding_errors, counts=counts
    )


def _check_unchanged(config: PrepareConfig, sources: Sources) -> None:
    now = describe_sources(config.sources)
    if now != sources:
        changed = [source for source in sources + now if source not in sources or source not in now]
        name = next(iter(changed[0].values()))
        raise UserError(f"{name}: the text changed while the corpus was made; try again when it is complete")


def _documents_before(folder: WorkFolder) -> int | None:
    """How many documents the first reading found, where there was one."""
    documents: int | None = json.loads(folder.notes.read_text(encoding="utf-8"))["documents"]
    return documents


@dataclass
class _Reading:
    """A reading of the whole text, and what was found in it."""

    folder: WorkFolder
    shard: Shard | None
    left_out: Counts = field(default_factory=Counts)
    pieces: int = 0

    def wanted(self, documents: Iterable[Document]) -> Iterator[NumberedTexts]:
        """The pieces that are to be encoded, and are not there."""
        for number, texts in enumerate(cut(documents)):
            self.pieces += 1
            is_ours = self.shard is None or self.shard.has(number)
            if is_ours and not piece_path(self.folder.pieces, number).is_file():
                yield NumberedTexts(number, texts)

    def save(self) -> None:
        """Note, at its end, what the reading found."""
        name = f"{self.shard.index}-of-{self.shard.count}" if self.shard else "all"
        own = self.folder.reading.with_stem(f"reading-{name}")  # several shards may end at once
        write_whole(own, json.dumps({"pieces": self.pieces, "left_out": asdict(self.left_out)}))
        own.replace(self.folder.reading)
