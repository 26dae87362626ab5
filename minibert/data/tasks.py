"""What is a labelled task? Rows with one or two texts and a label, their token ids, and the batches of an epoch."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from minibert.data.ragged import Inputs
from minibert.data.random import generator
from minibert.data.sources import Row, read_rows
from minibert.errors import UserError
from minibert.types import PositiveInt

_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_MEGABATCH = 50
"""Batches whose rows are sorted by length together: enough that they are alike, few enough to stay shuffled."""


@dataclass(frozen=True)
class TaskSettings:
    """Where the rows are and which of their fields are read."""

    train: str
    """Training rows: JSON lines, CSV, parquet (also .gz), hub:NAME:SPLIT, or rotten-tomatoes:train, imdb:train."""
    validation: str
    """Validation rows, on which the best epoch is chosen."""
    test: str | None = None
    """Test rows, read once at the end; null = none."""
    text: str = "text"
    """Field of the text."""
    text_pair: str | None = None
    """Field of the second text of a pair; null = single texts."""
    label: str = "label"
    """Field of the label, a string or a whole number."""
    max_length: PositiveInt = 128
    """Longest input in tokens; of longer ones the longer text loses its end."""

    def __post_init__(self) -> None:
        least = 3 if self.text_pair is None else 5  # the special tokens, and one token of each text
        if self.max_length < least:
            raise UserError(f"task.max_length is {self.max_length}; expected {least} at least")


@dataclass(frozen=True)
class Examples:
    """The rows of one split, encoded; `labels` are their numbers."""

    inputs: Inputs
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.inputs)


class Texts(NamedTuple):
    """The texts of a row: the second is None where there are no pairs."""

    first: str
    second: str | None


def label_names(rows: Iterable[Row], field: str, *, source: str = "the training rows") -> list[str]:
    """The labels of training rows in sorted order, numbers by their value; a label's place is its number.

    Raises `UserError` for a row without label, for numbers with fractions, and where there are fewer than two labels.
    """
    found: dict[str, str] = {}
    for row in rows:
        found.setdefault(_label(row, field), row.origin)
    if len(found) < 2:
        raise UserError(f"{source}: {len(found)} different labels in {field!r}; expected two or more")
    if all(map(_NUMBER.fullmatch, found)) and (name := next((n for n in found if not float(n).is_integer()), None)):
        raise UserError(f"{found[name]}: {field} is {name}; expected classes, not numbers with fractions")
    return sorted(found, key=lambda name: (0, int(name), name) if _is_whole(name) else (1, 0, name))


def read_texts(row: Row, text: str, text_pair: str | None) -> Texts:
    """The texts of a row; raises `UserError` naming file and line where one is missing or no string."""
    return Texts(_text(row, text), None if text_pair is None else _text(row, text_pair))


def read_examples(source: str, settings: TaskSettings, names: Sequence[str], tokenizer: Tokenizer) -> Examples:
    """All rows of a source, encoded; every row counts, one with an empty text too.

    Raises `UserError` naming file and line for a missing field, or a label that is not among `names`.
    """
    rows = list(read_rows(source))
    if not rows:
        raise UserError(f"{source}: no rows; expected some with the fields {settings.text!r} and {settings.label!r}")
    numbers = {name: number for number, name in enumerate(names)}
    labels = np.array([_number(row, settings.label, numbers) for row in rows], dtype=np.int64)
    texts = [read_texts(row, settings.text, settings.text_pair) for row in rows]
    return Examples(encode(tokenizer, texts, max_length=settings.max_length), labels)


def encode(tokenizer: Tokenizer, texts: Sequence[Texts], *, max_length: int) -> Inputs:
    """Token ids with special tokens, at most `max_length` of them: the longer text of a pair loses its end first."""
    tokenizer.enable_truncation(max_length, strategy="longest_first")
    try:
        encodings = tokenizer.encode_batch([first if second is None else (first, second) for first, second in texts])
    finally:
        tokenizer.no_truncation()
    lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
    ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int32, lengths.sum())
    types = np.fromiter(chain.from_iterable(encoding.type_ids for encoding in encodings), np.int8, lengths.sum())
    return Inputs(ids, types, np.concatenate(([0], lengths.cumsum())))


def epoch_batches(examples: Examples, batch_size: int, *, seed: int, epoch: int) -> list[npt.NDArray[np.int64]]:
    """The rows of each batch of an epoch: shuffled, rows of like length together, every row once.

    A pure function of its arguments. The last batch in the list is not the shortest one: batches are shuffled too.
    """
    random = generator(seed, epoch)
    order = random.permutation(len(examples))
    lengths = examples.inputs.lengths
    batches = []
    for begin in range(0, len(order), batch_size * _MEGABATCH):
        part = order[begin : begin + batch_size * _MEGABATCH]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += [part[row : row + batch_size] for row in range(0, len(part), batch_size)]
    return [batches[number] for number in random.permutation(len(batches))]


TASK_FILE = "task.json"


def save_task(directory: Path, settings: TaskSettings) -> None:
    """Write beside a model which fields it reads, so that predicting needs no more than its directory."""
    facts = {"text": settings.text, "text_pair": settings.text_pair, "max_length": settings.max_length}
    (directory / TASK_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def load_task(directory: Path) -> dict[str, Any]:
    """What `save_task` wrote: text, text_pair, max_length; their defaults where there is no such file."""
    path = directory / TASK_FILE
    defaults = {"text": "text", "text_pair": None, "max_length": 128}
    if not path.is_file():
        return defaults
    try:
        return defaults | json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, TypeError):
        raise UserError(f"{path}: damaged; expected an object with text, text_pair and max_length") from None


def _number(row: Row, field: str, numbers: Mapping[str, int]) -> int:
    name = _label(row, field)
    if name not in numbers:
        raise UserError(f"{row.origin}: label {name!r} does not occur in training; expected {', '.join(numbers)}")
    return numbers[name]


def _label(row: Row, field: str) -> str:
    value = _field(row, field)
    if isinstance(value, float) and not value.is_integer():
        raise UserError(f"{row.origin}: {field} is {value}; expected a class, a string or a whole number")
    if value in (None, "") or not isinstance(value, str | int | float):
        raise UserError(f"{row.origin}: {field} is {json.dumps(value)}; expected a string or a whole number")
    return str(int(value)) if isinstance(value, float | bool) else str(value)


def _text(row: Row, field: str) -> str:
    value = _field(row, field)
    if not isinstance(value, str):
        raise UserError(f"{row.origin}: {field} is {json.dumps(value)}; expected a string")
    return value


def _field(row: Row, field: str) -> Any:
    if field not in row.fields:
        raise UserError(f"{row.origin}: no field {field!r}; this row has {', '.join(row.fields)}")
    return row.fields[field]


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isdecimal()
