"""What stands in a file? The rows of text, JSON lines, CSV or parquet, one at a time, each with its file and line."""

import csv
import gzip
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq

from minibert.errors import UserError

EncodingErrors = Literal["strict", "replace", "skip"]


class Row(NamedTuple):
    """One row of a table: its fields, and where it stands as `file:line`."""

    fields: dict[str, Any]
    origin: str


@dataclass
class Counts:
    """What a reader left out or mended on its way; it grows while the rows are read."""

    undecodable_lines: int = 0
    """Lines with bytes that are not UTF-8, replaced or skipped as asked."""
    empty_texts: int = 0
    """Rows whose text is null or empty."""


class Line(NamedTuple):
    """A line without its end, numbered from 1."""

    number: int
    text: str


def read_file(path: Path, errors: EncodingErrors, counts: Counts) -> Iterator[Row]:
    """The rows of one file; the ending says its kind, `.gz` may follow. A line of a `.txt` is the row {"text": line}.

    Memory is bounded by the longest row. Raises `UserError` with file and line for bytes that are not UTF-8 (where
    `errors` is "strict"), for broken JSON, CSV or parquet, and for a file that cannot be read.
    """
    return _READERS[kind(path)](path, errors, counts)


def kind(path: Path) -> str:
    """The ending that says how to read the file: `.jsonl` for `a.jsonl.gz`; empty where there is none."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def read_lines(path: Path, errors: EncodingErrors, counts: Counts) -> Iterator[Line]:
    """The lines of a UTF-8 file. Only LF separates lines; one CR before it and a byte order mark are taken off."""
    offset = 0
    try:
        with _opened(path) as file:
            for number, raw in enumerate(file, start=1):
                text = _decoded(raw, f"{path}:{number}", offset, errors, counts)
                offset += len(raw)
                if text is not None:
                    text = text.removeprefix("\ufeff") if number == 1 else text
                    yield Line(number, text.removesuffix("\n").removesuffix("\r"))
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix.lower() == ".gz" else path.open("rb")


def _decoded(raw: bytes, origin: str, offset: int, errors: EncodingErrors, counts: Counts) -> str | None:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = f"byte 0x{raw[error.start]:02x} at byte offset {offset + error.start} is not UTF-8"
        _note_undecodable(f"{origin}: {wrong}", errors, counts)
    return raw.decode("utf-8", "replace") if errors == "replace" else None


def _note_undecodable(message: str, errors: EncodingErrors, counts: Counts) -> None:
    if errors == "strict":
        raise UserError(f'{message}; convert the file, or set encoding_errors to "replace" or "skip"')
    counts.undecodable_lines += 1


def _text_rows(path: Path, errors: EncodingErrors, counts: Counts) -> Iterator[Row]:
    for line in read_lines(path, errors, counts):
        yield Row({"text": line.text}, f"{path}:{line.number}")


def _json_rows(path: Path, errors: EncodingErrors, counts: Counts) -> Iterator[Row]:
    for line in read_lines(path, errors, counts):
        if line.text.strip():
            origin = f"{path}:{line.number}"
            fields = _json_object(line.text, origin)
            if not re.search(r"\\u[dD][89a-fA-F]", line.text) or _is_encodable(fields):
                yield Row(fields, origin)
                continue
            _note_undecodable(f"{origin}: an escaped half of a surrogate pair is no character", errors, counts)
            if errors == "replace":
                yield Row(json.loads(json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")), origin)


def _json_object(text: str, origin: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{origin} is not JSON ({error}); expected one object a line") from None
    if not isinstance(fields, dict):
        raise UserError(f"{origin} holds a JSON {type(fields).__name__}; expected one object a line")
    return fields


def _is_encodable(fields: dict[str, Any]) -> bool:
    try:
        json.dumps(fields, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _delimited_rows(path: Path, errors: EncodingErrors, counts: Counts, delimiter: str) -> Iterator[Row]:
    """Rows as dictionaries by the names of the first row. A quoted field may span lines."""
    numbers: list[int] = []
    csv.field_size_limit(sys.maxsize)  # a field may be a whole document; the module's limit is 128 KB
    records = csv.reader(_noting(read_lines(path, errors, counts), numbers), delimiter=delimiter, strict=True)
    header: list[str] = []
    try:
        for values in records:
            origin = f"{path}:{numbers[0]}"
            numbers.clear()
            if not header:
                header = _header(values, origin)
            elif values:
                yield Row(_fields(header, values, origin), origin)
    except csv.Error as error:
        raise UserError(f"{path}:{numbers[0] if numbers else 1} is not well-formed CSV: {error}") from None


def _noting(lines: Iterator[Line], numbers: list[int]) -> Iterator[str]:
    for line in lines:
        numbers.append(line.number)
        yield line.text + "\n"


def _header(values: list[str], origin: str) -> list[str]:
    if len(set(values)) < len(values):
        raise UserError(f"{origin} names a column twice: {', '.join(values)}")
    return values


def _fields(header: list[str], values: list[str], origin: str) -> dict[str, Any]:
    if len(values) != len(header):
        raise UserError(f"{origin} has {len(values)} fields; the first row names {len(header)}: {', '.join(header)}")
    return dict(zip(header, values, strict=True))


def _parquet_rows(path: Path, errors: EncodingErrors, counts: Counts) -> Iterator[Row]:
    number = 0
    try:
        with _opened(path) as file:
            for batch in pq.ParquetFile(file).iter_batches(batch_size=128):
                for fields in batch.to_pylist():
                    number += 1
                    yield Row(fields, f"{path}:{number}")
    except (OSError, EOFError, zlib.error, pa.ArrowException, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as parquet after row {number}: {error}") from error


_READERS: dict[str, Callable[[Path, EncodingErrors, Counts], Iterator[Row]]] = {
    ".txt": _text_rows,
    ".jsonl": _json_rows,
    ".json": _json_rows,
    ".csv": partial(_delimited_rows, delimiter=","),
    ".tsv": partial(_delimited_rows, delimiter="\t"),
    ".parquet": _parquet_rows,
}

ENDINGS = tuple(_READERS)
"""The endings of files that can be read."""
