"""From documents to a corpus on disk: a tokenizer is trained, the text encoded in pieces, the pieces put together.

    text -> tokenizer                 `readings`, `sample`     first reading, where no tokenizer is given
    text -> pieces                    `readings`, `pieces`     second reading; by several processes, or machines
    pieces -> train and validation    `merge`
    corpus -> corpus.json             `corpus_report`, `corpus_files`

What is done is kept in a folder beside the corpus until it is whole, see `work_folder`: a run that was killed goes on
there. Equal text and settings give equal bytes, on any number of processes or shards, killed or not.
"""

import json
import shutil
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from minibert.data import pieces
from minibert.data.chinese import word_cutter
from minibert.data.corpus_files import (
    FORMAT,
    Description,
    find_corpus,
    fingerprint,
    read_description,
    tokenizer_digests,
    write_description,
)
from minibert.data.corpus_report import count_corpus, find_faults
from minibert.data.merge import Dropped, decide_parts, merge_pieces
from minibert.data.prepare_config import NOT_OF_THE_CORPUS, PrepareConfig
from minibert.data.progress import Notify, Track, silent, untracked
from minibert.data.publish import check_writable, publish
from minibert.data.readings import encode_text, missing_pieces, read_before, shards_of
from minibert.data.sources import describe_sources
from minibert.data.token_store import open_tokens
from minibert.data.tokenizer import load_tokenizer, vocabulary
from minibert.data.work_folder import Shard, WorkFolder, clear_leftovers, locked
from minibert.errors import UserError

_FINGERPRINTED = (
    "lowercase",
    "strip_accents",
    "language",
    "validation_share",
    "validation_documents",
    "deduplicate",
    "mark_words",
)


class Built(NamedTuple):
    """What `build_corpus` did."""

    description: Description
    """The content of corpus.json."""
    is_new: bool
    """False where the corpus was there already."""


def build_corpus(config: PrepareConfig, *, track: Track = untracked, notify: Notify = silent) -> Built:
    """Make the corpus, or find that it is there already, from the same settings and the same files.

    Equal text and settings give equal bytes and an equal fingerprint. The folder appears whole or not at all. Where
    `config.merge` is set, nothing is encoded.

    Raises `UserError` for sources that cannot be read, for fewer than two different documents (a random next sentence
    comes from another one), where `output` holds something else, and where shards are missing.
    """
    output, made_from = Path(config.output).expanduser(), _made_from(config)
    if found := _find(output, made_from, config):
        return Built(found, is_new=False)
    check_writable(output)
    try:
        with locked(output.resolve(), _work_made_from(made_from), notify=notify) as folder:
            if found := find_corpus(output, made_from, overwrite=config.overwrite):
                return Built(found, is_new=False)  # another process made it meanwhile
            replaced = folder.replaced if (output / "corpus.json").is_file() else None
            _fill(folder, config, made_from, track, notify)
            publish(folder.corpus, output.resolve(), replaced=replaced)
    except FileExistsError:  # another process was faster, where there are no locks
        if found := _find(output, made_from, config):
            return Built(found, is_new=False)
        raise
    return Built(read_description(output), is_new=True)


class Encoded(NamedTuple):
    """What `encode_shard` did."""

    pieces: int
    """Pieces of the whole text; 0 where the corpus is there already."""
    missing: list[Shard]
    """Shards that have pieces to make yet."""


def encode_shard(config: PrepareConfig, *, track: Track = untracked, notify: Notify = silent) -> Encoded:
    """Encode the pieces of `config.shard`, and keep them for `build_corpus` with `merge`.

    Raises `UserError` as `build_corpus` does.
    """
    shard = config.as_shard()
    output, made_from = Path(config.output).expanduser(), _made_from(config)
    if shard is None or _find(output, made_from, config):
        return Encoded(0, [])
    check_writable(output)
    with locked(output.resolve(), _work_made_from(made_from), shard=shard, notify=notify) as folder:
        count = encode_text(folder, config, made_from["sources"], track=track, notify=notify)
        return Encoded(count, shards_of(missing_pieces(folder, count), shard.count))


def _find(output: Path, made_from: Description, config: PrepareConfig) -> Description | None:
    found = find_corpus(output, made_from, overwrite=config.overwrite)
    if found:
        clear_leftovers(output.resolve())
    return found


def _made_from(config: PrepareConfig) -> Description:
    """What tells this corpus from another: settings, source files and tokenizer files."""
    if config.mark_words:
        word_cutter()
    settings = {name: value for name, value in asdict(config).items() if name not in ("sources", *NOT_OF_THE_CORPUS)}
    sources = describe_sources(config.sources)
    output = Path(config.output).expanduser().resolve()
    for path in (Path(source["path"]) for source in sources if "path" in source):
        if path.resolve().is_relative_to(output):
            raise UserError(f"output {config.output} is where the source {path} lies; choose another folder")
    return {"settings": settings, "sources": sources, "tokenizer": tokenizer_digests(config.tokenizer)}


def _work_made_from(made_from: Description) -> Description:
    """What pieces depend on as well: how they are cut, and who made them."""
    return {**made_from, "format": FORMAT, "piece_characters": pieces.PIECE_CHARACTERS, "versions": _versions()}


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("tokenizers", "sentencex", "pyarrow", "datasets")}


def _fill(folder: WorkFolder, config: PrepareConfig, made_from: Description, track: Track, notify: Notify) -> None:
    """Make all that is in a corpus, in the work folder."""
    if not folder.parts.is_file():
        if config.merge:
            count = read_before(folder)
        else:
            count = encode_text(folder, config, made_from["sources"], track=track, notify=notify)
        decide_parts(
            folder,
            count,
            share=config.validation_share,
            most=config.validation_documents,
            deduplicate=config.deduplicate,
        )
    dropped = merge_pieces(folder, words=config.mark_words, processes=config.count_processes(), track=track)
    shutil.copytree(folder.tokenizer, folder.corpus / "tokenizer", dirs_exist_ok=True)
    write_description(folder.corpus, {**_describe(folder, config, dropped), **made_from})


def _describe(folder: WorkFolder, config: PrepareConfig, dropped: Dropped) -> Description:
    _check_train(folder, dropped)
    known, settings = vocabulary(load_tokenizer(folder.tokenizer)), asdict(config)
    reading, notes = (json.loads(path.read_text(encoding="utf-8")) for path in (folder.reading, folder.notes))
    counts = count_corpus(folder.corpus, known.unk) | {"dropped": asdict(dropped) | reading["left_out"]}
    relevant = {name: settings[name] for name in _FINGERPRINTED}
    return {
        "fingerprint": fingerprint((folder.tokenizer / "vocab.txt").read_bytes(), relevant, folder.corpus),
        "vocab_size": known.size,
        "counts": counts,
        "warnings": find_faults(counts, notes["notes"]),
        "versions": _versions(),
    }


def _check_train(folder: WorkFolder, dropped: Dropped) -> None:
    if len(open_tokens(folder.corpus, "train").document_offsets) > 2:
        return
    folder.parts.unlink()  # there is nothing to go on from
    copies = dropped.near_copies_of_validation
    raise UserError(
        f"of the train part all documents but one are near copies of held-out ones ({copies}); expected two at least, "
        "or validation_share: 0, which holds out none"
        if copies
        else "fewer than two documents have tokens in this tokenizer; expected two in the train part"
    )
