"""The section on fine-tuning: what the runs of a task say together, the seeds beside each other, and a table."""

import itertools
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

from markupsafe import Markup

from minibert.report.charts import seed_chart
from minibert.report.findings import findings
from minibert.report.page import Cell, Table
from minibert.report.runs import FinetuningRun, metric_name, ordered, unit


class Task(NamedTuple):
    """What the report shows of a task; `measure` is what its runs are judged by."""

    name: str
    measure: str
    findings: list[str]
    picture: Markup
    table: Table


def fine_tuning(runs: Sequence[FinetuningRun]) -> list[Task]:
    """What fine-tuning came to, task by task."""
    return [_task(name, list(group)) for name, group in itertools.groupby(ordered(runs), key=lambda run: run.task)]


def _task(task: str, runs: Sequence[FinetuningRun]) -> Task:
    name, measure = PurePath(task).name.removesuffix(":train"), runs[0].measure
    alike = [run for run in runs if run.measure == measure]
    picture = seed_chart(f"Task {name}, {measure} of each seed", alike, runs[0].unit)
    return Task(name, measure, findings(runs), picture, _table(name, runs))


def _table(name: str, runs: Sequence[FinetuningRun]) -> Table:
    """One row for each run: mean and spread of every metric, and the values of the seeds below."""
    metrics = [metric for metric in runs[0].scores[runs[0].split] if metric != "loss" or metric == runs[0].best_metric]
    header = [f"{runs[0].split.capitalize()} {metric_name(metric)}" for metric in metrics]
    rows = [[*_about(run), *(_cell(run, metric) for metric in metrics), _seconds(run)] for run in runs]
    caption = f"Task {name}: mean ± standard deviation over seeds, and each seed below"
    return Table(caption, ["Method", "Parameters trained", *header, "Time for a seed"], rows)


def _about(run: FinetuningRun) -> tuple[Cell, Cell]:
    return (run.method_name, run.start), (f"{run.trained:,}", f"{run.trained / run.parameters:.2%}")


def _cell(run: FinetuningRun, metric: str) -> Cell:
    score, write = run.scores[run.split].get(metric), unit(metric).value
    if score is None:
        return "–"
    seeds = [write(value).removesuffix("%") for value in score.values]
    return f"{write(score.mean)} ± {write(score.spread).removesuffix('%')}", " ".join(seeds)


def _seconds(run: FinetuningRun) -> Cell:
    return f"{run.seconds.mean:,.1f} ± {run.seconds.spread:,.1f}", "seconds"
