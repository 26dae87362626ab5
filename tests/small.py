"""Small things to test with: text from a little grammar, a task, and the options of a tiny model."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BRIGHT = ["red", "quiet", "small", "merry", "golden"]
DARK = ["heavy", "grey", "bitter", "broken", "cold"]
THINGS = ["river", "mountain", "lamp", "horse", "teacher", "garden", "window", "engine", "letter", "kitchen"]
VERBS = ["sees", "finds", "carries", "paints", "follows", "hears"]

SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 61,
    "max_position_embeddings": 48,
    "initializer_range": 0.2,
}
"""A model whose step takes some milliseconds, and whose fresh weights are large enough to tell inputs apart."""

TRAINING = {
    "steps": 40,
    "batch_size": 8,
    "micro_batch_size": 5,
    "log_every": 1,
    "evaluate_every": 13,
    "evaluation_rows": 11,
    "save_every": 4,
}
"""40 updates with an uneven last micro-batch, and a checkpoint after every fourth."""

PRETRAINING = [
    "--pairs.max_length=40",
    *(f"--model.{name}={value}" for name, value in SHAPE.items()),
    *(f"--training.{name}={value}" for name, value in TRAINING.items()),
]
"""Options of pretrain/train.py, for a run with dropout."""


def sentence(rng: random.Random, adjectives: list[str]) -> str:
    """Such as "The red river sees the quiet lamp." """
    first, second = (f"the {rng.choice(adjectives)} {rng.choice(THINGS)}" for _ in range(2))
    return f"{first} {rng.choice(VERBS)} {second}.".capitalize()


def documents(seed: int, count: int) -> Iterator[str]:
    """Documents of three to nine sentences."""
    rng = random.Random(seed)
    for _ in range(count):
        yield " ".join(sentence(rng, rng.choice([BRIGHT, DARK, BRIGHT + DARK])) for _ in range(rng.randint(3, 9)))


def write_text(path: Path, *, seed: int = 0, count: int = 83) -> Path:
    """Write documents with a blank line after each."""
    path.write_text("\n\n".join(documents(seed, count)) + "\n", encoding="utf-8")
    return path


def rows(seed: int, count: int) -> list[dict[str, str]]:
    """Rows of a task: four to seven adjectives and a thing, and whether the adjectives are bright or dark ones."""
    rng, adjectives = random.Random(seed), {"bright": BRIGHT, "dark": DARK}
    labels = [rng.choice(["bright", "dark"]) for _ in range(count)]
    words = [[*rng.choices(adjectives[label], k=rng.randint(4, 7)), rng.choice(THINGS)] for label in labels]
    return [{"text": " ".join(text), "label": label} for text, label in zip(words, labels, strict=True)]


def write_rows(path: Path, content: list[dict[str, object]] | list[dict[str, str]]) -> Path:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    return path


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of RUN/metrics.jsonl, without the speed, which no two runs share."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_bytes().decode("utf-8").split("\n") if line]
    for line in lines:
        line["values"].pop("tokens_per_second", None)
    return lines
