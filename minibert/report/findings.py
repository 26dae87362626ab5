"""What do the numbers say? Whole sentences computed from them, also where the answer is: nothing was gained."""

import itertools
from collections.abc import Sequence

from minibert.metrics import HIGHER_IS_BETTER
from minibert.report.runs import FinetuningRun, ordered


def findings(runs: Sequence[FinetuningRun]) -> list[str]:
    """What pretraining gained over random weights, and what adapters gave up, where runs can be compared."""
    pairs = [pair for pair in itertools.permutations(ordered(runs), 2) if _comparable(*pair)]
    gains = [
        gain_over_random(run, other)
        for run, other in pairs
        if run.is_pretrained and not other.is_pretrained and run.method == other.method
    ]
    costs = [
        beside_full(run, other)
        for run, other in pairs
        if run.is_pretrained == other.is_pretrained and run.method != other.method == "full"
    ]
    return gains + costs


def gain_over_random(pretrained: FinetuningRun, random: FinetuningRun) -> str:
    """Was pretraining worth it? Says plainly when the difference is not larger than the spread over seeds."""
    unit, gain = pretrained.unit, _gain(pretrained, random)
    scores = (
        f"{pretrained.method_name} reaches {unit.value(pretrained.score.mean)} {pretrained.measure} from the "
        f"pretrained encoder and {unit.value(random.score.mean)} from random weights"
    )
    spread = _spread(pretrained, random)
    if spread is None:
        return f"{scores}. With a single seed the spread is not known: this difference says nothing yet."
    if abs(gain) <= spread:
        sign = "+" if gain > 0 else "−" if gain < 0 else ""
        return (
            f"{scores}. The difference of {sign}{unit.size(abs(gain))} is not larger than the spread over seeds "
            f"({unit.size(spread)}): pretraining gained nothing here that can be told from chance."
        )
    what, verdict = ("gain", "pretraining helped") if gain > 0 else ("loss", "pretraining did harm here")
    overlap = (
        "but their seeds overlap, which is weak evidence" if _overlap(pretrained, random) else "and no seeds overlap"
    )
    return (
        f"{scores}. The {what} of {unit.size(abs(gain))} is larger than the spread over seeds ({unit.size(spread)}), "
        f"{overlap}: {verdict}."
    )


def beside_full(adapter: FinetuningRun, full: FinetuningRun) -> str:
    """What did training few parameters cost, beside training all of them?"""
    unit, gain, spread, within = adapter.unit, _gain(adapter, full), _spread(adapter, full), ""
    distance = f"{unit.size(abs(gain))} {'better' if gain > 0 else 'worse'} than" if gain else "as good as"
    if gain and spread is not None:
        within = f", {'more than' if abs(gain) > spread else 'within'} the spread over seeds ({unit.size(spread)})"
    return (
        f"{adapter.method_name} trains {adapter.trained:,} of {adapter.parameters:,} parameters "
        f"({adapter.trained / adapter.parameters:.2%}) and is {distance} full training{within}."
    )


def _comparable(run: FinetuningRun, other: FinetuningRun) -> bool:
    return (run.task, run.best_metric, run.split) == (other.task, other.best_metric, other.split)


def _gain(run: FinetuningRun, other: FinetuningRun) -> float:
    """How much better is a run than another? In the direction of their metric."""
    sign = 1 if HIGHER_IS_BETTER.get(run.best_metric, True) else -1
    return sign * (run.score.mean - other.score.mean)


def _spread(*runs: FinetuningRun) -> float | None:
    """The larger spread of the runs, None where one has a single seed."""
    scores = [run.score for run in runs]
    return max(score.spread for score in scores) if all(len(score.values) > 1 for score in scores) else None


def _overlap(run: FinetuningRun, other: FinetuningRun) -> bool:
    return max(min(run.score.values), min(other.score.values)) <= min(max(run.score.values), max(other.score.values))
