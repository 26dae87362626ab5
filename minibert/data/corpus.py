"""From documents to a corpus on disk, and back: a tokenizer and memory-mapped token ids, split by document.

    CORPUS/  corpus.json                     fingerprint, counts, warnings, settings, sources, versions
             tokenizer/                      as `load_tokenizer` and `transformers.AutoTokenizer` read it
             train.arrow  validation.arrow   documents of sentences of token ids, see `token_store`

The sources are read twice, a document at a time: to count words and hash documents, and to encode them.
"""

import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tokenizers import Tokenizer

from minibert.data.corpus_files import (
    SPLITS,
    Description,
    find_corpus,
    fingerprint,
    read_description,
    tokenizer_digests,
    write_description,
)
from minibert.data.corpus_passes import Survey, encode_documents
from minibert.data.corpus_report import count_corpus, find_faults
from minibert.data.publish import check_writable, published
from minibert.data.sources import Counts, Document, EncodingErrors, describe_sources, read_documents
from minibert.data.splits import split_documents
from minibert.data.token_store import Ids, Offsets, TokenWriter, open_tokens
from minibert.data.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer, vocabulary
from minibert.errors import UserError
from minibert.types import PositiveInt, UnitInterval

_FINGERPRINTED = "lowercase", "strip_accents", "language", "validation_share", "validation_documents", "deduplicate"

Track = Callable[[Iterable[Document], str, int | None], Iterable[Document]]
"""Called with documents, the name of the stage and their number where it is known; passes them on, to show progress."""


@dataclass(frozen=True)
class PrepareConfig:
    """Turn text into a corpus: a tokenizer, and token ids of train and validation documents."""

    sources: list[str] | str
    """Where the text is: files, folders, globs (.txt .jsonl .csv .tsv .parquet, each may be .gz; in a .txt a blank line
    ends a document), a directory saved by `datasets`, hub:NAME[:CONFIG][:SPLIT], or an open corpus: wiki-summaries,
    imdb, rotten-tomatoes."""
    output: str
    """The folder to make."""
    vocab_size: PositiveInt = 16_384
    """Number of entries of the vocabulary to train, special tokens included."""
    lowercase: bool = True
    """Whether upper and lower case are the same to the trained tokenizer."""
    strip_accents: bool | None = None
    """Whether the trained tokenizer removes accents; null: as `lowercase` says, as published BERT does."""
    tokenizer: str | None = None
    """A folder with a tokenizer to take instead of training one."""
    language: str = "en"
    """Code of the language (en, de, zh, ...): it tells abbreviations from the ends of sentences."""
    text_field: str = "text"
    """The field or column of tables that holds the text."""
    encoding_errors: EncodingErrors = "strict"
    """What to do with a line that is not UTF-8: stop there, replace its bad bytes by U+FFFD, or skip it."""
    validation_share: UnitInterval = 0.01
    """Share of the documents that is held out, at most 0.5; 0 holds out none."""
    validation_documents: PositiveInt = 1000
    """At most this many documents are held out."""
    deduplicate: bool = True
    """Whether of equal documents only the first is kept."""
    overwrite: bool = False
    """Whether a corpus of other settings or sources at `output` may be replaced."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise UserError("sources is empty; expected one file, folder or open corpus at least")
        if self.validation_share > 0.5:
            raise UserError(f"validation_share is {self.validation_share}; expected at most 0.5")
        if self.validation_documents < 2:
            raise UserError(f"validation_documents is {self.validation_documents}; expected 2 at least")
        if not re.fullmatch(r"[a-z]{2,3}([-_][A-Za-z0-9]+)*", self.language):
            raise UserError(f"language is {self.language!r}; expected the code of a language, such as en or zh")


@dataclass(frozen=True, eq=False)
class Corpus:
    """One split of a corpus: a flat stream of token ids, and where its sentences and documents begin.

    Sentence s of the split is `tokens(sentence_offsets[s], sentence_offsets[s + 1])`.
    """

    directory: Path
    split: str
    fingerprint: str
    """Of the whole corpus: equal for equal vocabulary, settings and token ids."""
    vocab_size: int
    document_offsets: Offsets
    """[documents + 1]: sentences `[d]` to `[d + 1]` are document d."""
    sentence_offsets: Offsets
    """[sentences + 1]: tokens `[s]` to `[s + 1]` are sentence s."""
    tokens: Callable[[int, int], Ids]
    """`tokens(begin, end)`: the ids of that range of the stream, a view of the mapped file where possible."""

    @staticmethod
    def open(directory: str | Path, split: Literal["train", "validation"]) -> "Corpus":
        """Map one split into memory. Raises `UserError` where `directory` is no corpus of this version, or damaged."""
        directory = Path(directory)
        about = read_description(directory)
        store = open_tokens(directory / f"{split}.arrow")
        offsets = store.document_offsets, store.sentence_offsets
        return Corpus(directory, split, about["fingerprint"], about["vocab_size"], *offsets, store.tokens)

    def __reduce__(self) -> tuple[Any, ...]:
        return Corpus.open, (self.directory, self.split)  # another process maps the file; it gets no copy


class Built(NamedTuple):
    """What `build_corpus` did."""

    description: Description
    """The content of corpus.json."""
    is_new: bool
    """False where the corpus was there already."""


def build_corpus(config: PrepareConfig, *, track: Track = lambda documents, stage, total: documents) -> Built:
    """Make the corpus, or find that it is there already, from the same settings and the same files.

    Equal text and settings give equal bytes and an equal fingerprint. The folder appears whole or not at all.
    Raises `UserError` for sources that cannot be read, for fewer than two different documents (a random next sentence
    comes from another one), and where `output` holds something else.
    """
    output, made_from = Path(config.output).expanduser(), _made_from(config)
    if found := find_corpus(output, made_from, overwrite=config.overwrite):
        return Built(found, is_new=False)
    check_writable(output)
    replaces = (output / "corpus.json").is_file()
    survey = Survey()
    tokenizer, notes = _make_tokenizer(config, survey.texts(track(_read(config, Counts()), "counting words", None)))
    try:
        with published(output, replace=replaces) as directory:
            save_tokenizer(tokenizer, directory / "tokenizer")
            dropped = _encode(config, survey, tokenizer, directory, track)
            write_description(directory, {**_describe(config, directory, tokenizer, dropped, notes), **made_from})
    except FileExistsError:  # another process was faster
        if found := find_corpus(output, made_from, overwrite=False):
            return Built(found, is_new=False)
        raise
    return Built(read_description(output), is_new=True)


def _made_from(config: PrepareConfig) -> Description:
    """What tells this corpus from another: settings, source files and tokenizer files."""
    settings = asdict(config)
    for name in ("sources", "output", "overwrite"):
        del settings[name]
    sources = describe_sources(config.sources)
    output = Path(config.output).expanduser().resolve()
    for path in (Path(source["path"]) for source in sources if "path" in source):
        if path.resolve().is_relative_to(output):
            raise UserError(f"output {config.output} is where the source {path} lies; choose another folder")
    return {"settings": settings, "sources": sources, "tokenizer": tokenizer_digests(config.tokenizer)}


def _read(config: PrepareConfig, counts: Counts) -> Iterator[Document]:
    return read_documents(
        config.sources, text_field=config.text_field, encoding_errors=config.encoding_errors, counts=counts
    )


def _make_tokenizer(config: PrepareConfig, texts: Iterator[str]) -> tuple[Tokenizer, list[str]]:
    """The tokenizer, trained or given, after all texts were read; and what was odd about it."""
    if config.tokenizer is not None:
        tokenizer = load_tokenizer(config.tokenizer)
        deque(texts, maxlen=0)
        return tokenizer, []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tokenizer = train_tokenizer(
            texts, vocab_size=config.vocab_size, lowercase=config.lowercase, strip_accents=config.strip_accents
        )
    return tokenizer, [str(warning.message) for warning in caught if warning.category is UserWarning]


def _encode(config: PrepareConfig, survey: Survey, tokenizer: Tokenizer, directory: Path, track: Track) -> Description:
    """Write the Arrow files; what was left out, by kind."""
    parts = split_documents(
        survey.hashes,
        survey.with_words,
        share=config.validation_share,
        most=config.validation_documents,
        deduplicate=config.deduplicate,
    )
    counts, size = Counts(), vocabulary(tokenizer).size
    with ExitStack() as stack:
        writers = [stack.enter_context(TokenWriter(directory / f"{split}.arrow", vocab_size=size)) for split in SPLITS]
        dropped = encode_documents(
            track(_read(config, counts), "encoding", len(parts)),
            survey,
            parts,
            tokenizer=tokenizer,
            language=config.language,
            writers=writers,
        )
    return asdict(dropped) | asdict(counts)


def _describe(
    config: PrepareConfig, directory: Path, tokenizer: Tokenizer, dropped: Description, notes: list[str]
) -> Description:
    stores = {split: open_tokens(directory / f"{split}.arrow") for split in SPLITS}
    pieces, settings = vocabulary(tokenizer), asdict(config)
    if len(stores["train"].document_offsets) < 3:
        raise UserError("fewer than two documents have tokens in this tokenizer; expected two in the train part")
    counts = count_corpus(stores, pieces.unk)
    relevant = {name: settings[name] for name in _FINGERPRINTED}
    return {
        "fingerprint": fingerprint((directory / "tokenizer" / "vocab.txt").read_bytes(), relevant, stores),
        "vocab_size": pieces.size,
        "counts": counts | {"dropped": dropped},
        "warnings": find_faults(counts, notes),
        "versions": {name: version(name) for name in ("tokenizers", "sentencex", "pyarrow", "datasets")},
    }
