"""What runs left on disk, read for a report. Nothing here is computed anew."""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from minibert.errors import UserError
from minibert.report.wording import NUMBER, SCORE, Unit
from minibert.training.tracking import read_metrics

Facts = dict[str, Any]
Series = list[tuple[int, float]]

_METHODS = {
    "full": "Full training",
    "lora": "LoRA",
    "pfeiffer": "Pfeiffer adapter",
    "houlsby": "Houlsby adapter",
    "prefix": "Prefix tuning",
    "bitfit": "BitFit",
    "frozen": "Frozen encoder",
}


@dataclass(frozen=True)
class PretrainingRun:
    """A pretraining run, finished or not; what is not there yet is empty."""

    path: Path
    config: Facts
    environment: Facts
    corpus: Facts
    """What corpus.json says, where it can still be found."""
    rows: list[Facts]
    """The lines of metrics.jsonl."""

    def series(self, split: str, name: str) -> Series:
        """The (step, value) pairs of one metric in the order of the steps; values that were not finite are absent."""
        rows = (row for row in self.rows if row["split"] == split)
        return [(row["step"], row["values"][name]) for row in rows if row["values"].get(name) is not None]

    def last(self, split: str, name: str) -> float | None:
        """The last value of a metric."""
        series = self.series(split, name)
        return series[-1][1] if series else None

    @property
    def step(self) -> int:
        """The last step that was written down."""
        return max((row["step"] for row in self.rows), default=0)

    @property
    def steps(self) -> int | None:
        """The steps that were planned; None where the end was given in epochs, tokens or time."""
        training = self.config.get("training", {})
        is_counted = not (self.config.get("budget") or training.get("tokens") or training.get("epochs"))
        return training.get("steps") if is_counted else None

    @property
    def seconds(self) -> float:
        """Time spent on training, without evaluation and saving: tokens by tokens per second, line by line."""
        speeds = dict(self.series("train", "tokens_per_second"))
        tokens = [(0, 0.0), *((step, count) for step, count in self.series("train", "tokens") if speeds.get(step))]
        return sum((after - before) / speeds[step] for (_, before), (step, after) in itertools.pairwise(tokens))

    @property
    def checkpoint(self) -> Path | None:
        """The newest model of the run."""
        path = self.path / "last"
        return path if (path / "config.json").is_file() else None


@dataclass(frozen=True)
class Score:
    """A metric over the seeds of a run."""

    mean: float
    spread: float
    values: list[float]


@dataclass(frozen=True)
class FinetuningRun:
    """A finished fine-tuning run: what its results.json says."""

    task: str
    method: str
    is_pretrained: bool
    """Whether it began with the weights of a pretrained encoder, and not with random ones."""
    parameters: int
    trained: int
    best_metric: str
    scores: dict[str, dict[str, Score]]
    """By split (validation, test) and metric."""
    seconds: Score

    @property
    def method_name(self) -> str:
        """The method in words."""
        return _METHODS.get(self.method, self.method)

    @property
    def start(self) -> str:
        """What it began with, in words."""
        return "pretrained encoder" if self.is_pretrained else "random weights"

    @property
    def name(self) -> str:
        """The run in words."""
        return f"{self.method_name}, {self.start}"

    @property
    def split(self) -> str:
        """The split to report: test where there is one."""
        return "test" if "test" in self.scores else "validation"

    @property
    def score(self) -> Score:
        """What the run is judged by: its best metric on the split to report."""
        return self.scores[self.split][self.best_metric]

    @property
    def measure(self) -> str:
        """What the run is judged by, in words: test accuracy."""
        return f"{self.split} {metric_name(self.best_metric)}"

    @property
    def unit(self) -> Unit:
        """How its score is written."""
        return unit(self.best_metric)


def read_pretraining(path: Path) -> PretrainingRun:
    """Read RUN; raises `UserError` where it is no directory, or a file in it is damaged."""
    if not path.is_dir():
        raise UserError(f"{path}: no such directory; expected the run of pretrain/train.py")
    config = _read(path / "config.yaml", yaml.safe_load)
    corpus = _read(Path(str(config.get("corpus", ""))) / "corpus.json", json.loads)
    try:
        rows = read_metrics(path / "metrics.jsonl")
    except ValueError as error:
        raise UserError(f"{path / 'metrics.jsonl'}: a line is not JSON ({error})") from None
    return PretrainingRun(path, config, _read(path / "environment.json", json.loads), corpus, rows)


def read_finetuning(path: Path) -> FinetuningRun | None:
    """Read RUN/results.json, None where the run is not finished; raises `UserError` where there is no such run."""
    if not path.is_dir():
        raise UserError(f"{path}: no such directory; expected the run of finetune/train.py")
    facts = _read(path / "results.json", json.loads)
    try:
        return _finetuning(facts) if facts else None
    except (KeyError, TypeError) as error:
        raise UserError(f"{path / 'results.json'}: not the results of finetune/train.py ({error!r})") from None


def ordered(runs: Sequence[FinetuningRun]) -> list[FinetuningRun]:
    """By task, method (full training first) and start (the pretrained encoder first)."""
    place = {name: number for number, name in enumerate(_METHODS)}
    return sorted(
        runs, key=lambda run: (run.task, place.get(run.method, len(place)), run.method, not run.is_pretrained)
    )


def metric_name(metric: str) -> str:
    """A metric in words."""
    return {"f1": "F1", "matthews": "Matthews correlation"}.get(metric, metric.replace("_", " "))


def unit(metric: str) -> Unit:
    """How values of a metric are written: shares in percent, correlations and losses as they are."""
    return SCORE if metric in {"accuracy", "f1"} else NUMBER


def _finetuning(facts: Facts) -> FinetuningRun:
    splits = {split: facts[split] for split in ("validation", "test") if facts.get(split)}
    scores = {split: {name: Score(**score) for name, score in named.items()} for split, named in splits.items()}
    same = {name: facts[name] for name in ("task", "method", "parameters", "best_metric")}
    start, trained = facts["model"] is not None, facts["trainable_parameters"]
    return FinetuningRun(**same, is_pretrained=start, trained=trained, scores=scores, seconds=Score(**facts["seconds"]))


def _read(path: Path, parse: Callable[[str], Any]) -> Facts:
    """The facts of a file, none where there is no file."""
    if not path.is_file():
        return {}
    try:
        return dict(parse(path.read_text(encoding="utf-8")) or {})
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: damaged ({' '.join(str(error).split())})") from None
