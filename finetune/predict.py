"""Classify the rows of a file with a fine-tuned model or adapter.

    python finetune/predict.py --model RUN/seed-0/last --input FILE --output FILE

Every row of the input gives one line of the output, in the same order: its label and the probability of each label.
"""

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from minibert import UserError, cli
from minibert.data.sources import read_rows
from minibert.data.tasks import Texts, load_task, read_texts
from minibert.inference import Prediction, classify, load_classifier
from minibert.types import PositiveInt


@dataclass(frozen=True)
class PredictConfig:
    """Classify the rows of a file with a fine-tuned model or adapter."""

    model: str
    """Directory of the fine-tuned model, such as RUN/seed-0/last."""
    input: str
    """Rows to classify: JSON lines, CSV, parquet, text lines, also .gz."""
    output: str
    """File to write: JSON lines, or CSV where its name ends in .csv."""
    text: str | None = None
    """Field of the text; null = as in training."""
    text_pair: str | None = None
    """Field of the second text; null = as in training."""
    base: str | None = None
    """Directory of an adapter's base, if it is not where it was in training."""
    batch_size: PositiveInt = 64
    """Rows in one forward pass."""


def main(config: PredictConfig) -> None:
    """Read, classify and write, a few rows in memory at a time."""
    output = Path(config.output)
    write = WRITERS.get(output.suffix, write_json_lines)
    if not output.resolve().parent.is_dir() or output.is_dir():
        raise UserError(f"{output}: expected the name of a file to write, in a folder that exists")
    if output.resolve() == Path(config.input).resolve():
        raise UserError(f"{output}: is the input itself; choose another output")
    task = load_task(Path(config.model))
    model, tokenizer = load_classifier(config.model, config.base)
    model.to(torch.accelerator.current_accelerator(check_available=True) or "cpu")
    texts = read(config.input, config.text or task["text"], config.text_pair or task["text_pair"])
    predictions = classify(model, tokenizer, texts, max_length=task["max_length"], batch_size=config.batch_size)
    aside = output.with_name(f".{output.name}.partial")
    try:
        with aside.open("w", encoding="utf-8", newline="") as file:
            count = write(file, predictions, model.config.label_names)
        aside.replace(output)
    finally:
        aside.unlink(missing_ok=True)
    print(f"{count} rows classified; {output}")


def read(source: str, text: str, text_pair: str | None) -> Iterator[Texts]:
    """The texts of each row."""
    return (read_texts(row, text, text_pair) for row in read_rows(source))


def write_json_lines(file: IO[str], predictions: Iterator[Prediction], labels: list[str]) -> int:
    """One object a line: label, and probabilities by label. Returns the number of lines."""
    count = 0
    for prediction in predictions:
        count += 1
        named = dict(zip(labels, prediction.probabilities, strict=True))
        file.write(json.dumps({"label": prediction.label, "probabilities": named}, ensure_ascii=False) + "\n")
    return count


def write_csv(file: IO[str], predictions: Iterator[Prediction], labels: list[str]) -> int:
    """A table of the label and the probability of each label. Returns the number of rows."""
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["label", *labels])
    count = 0
    for prediction in predictions:
        count += 1
        table.writerow([prediction.label, *prediction.probabilities])
    return count


WRITERS: dict[str, Callable[[IO[str], Iterator[Prediction], list[str]], int]] = {".csv": write_csv}
"""How to write, by the ending of the output; anything else is JSON lines."""


if __name__ == "__main__":
    cli.run(main, PredictConfig)
