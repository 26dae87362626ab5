"""The learning rate by the number of the update: tables by hand, torch's own schedulers, and what must always hold."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from minibert.training.schedules import ScheduleSettings, learning_rate_factor

KINDS = ("constant", "linear", "cosine", "wsd")


def factors(updates: int, **settings: object) -> list[float]:
    """Those of all updates, and the one that would follow."""
    return [learning_rate_factor(update, updates, ScheduleSettings(**settings)) for update in range(updates + 1)]


@pytest.mark.parametrize(
    ("settings", "table"),
    [
        ({"kind": "constant", "warmup": 0.4}, [1 / 4, 2 / 4, 3 / 4, 1, 1, 1, 1, 1, 1, 1, 1]),
        ({"kind": "linear", "warmup": 0.2}, [1 / 2, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0]),
        ({"kind": "linear", "warmup": 0.0}, [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0]),
        ({"kind": "cosine", "warmup": 0.6}, [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1, 1, 0.853553, 0.5, 0.146447, 0]),
        ({"kind": "wsd", "warmup": 0.2, "decay": 0.4}, [1 / 2, 1, 1, 1, 1, 1, 1, 0.5, 0.292893, 0.133975, 0]),
        ({"kind": "linear", "warmup": 1.0}, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]),
        ({"kind": "wsd", "warmup": 0.0, "decay": 0.0}, [1] * 10),
        (
            {"kind": "wsd", "warmup": 0.8, "decay": 0.9},
            [1 / 8, 2 / 8, 3 / 8, 4 / 8, 5 / 8, 6 / 8, 7 / 8, 1, 1, 0.292893],
        ),
    ],
)
def test_ten_updates_have_these_factors(settings: dict[str, object], table: list[float]) -> None:
    assert factors(10, **settings)[: len(table)] == pytest.approx(table, abs=1e-6)


def test_linear_and_cosine_are_those_of_torch() -> None:
    falling: dict[str, Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]] = {
        "linear": lambda optimizer: lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=83 - 17),
        "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 83 - 17),
    }
    for kind, fall in falling.items():
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        rise = lr_scheduler.LinearLR(optimizer, 1 / 17, 1.0, total_iters=16)
        scheduler = lr_scheduler.SequentialLR(optimizer, [rise, fall(optimizer)], milestones=[17])
        theirs = []
        for _ in range(84):
            theirs.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        assert factors(83, kind=kind, warmup=17 / 83) == pytest.approx(theirs, abs=1e-6), kind


@pytest.mark.parametrize("kind", KINDS[1:])
def test_ten_thousand_updates_end_at_zero_and_not_before(kind: str) -> None:
    values = factors(10_000, kind=kind, warmup=0.01)
    assert values[10_000] == pytest.approx(0.0, abs=1e-12)
    assert values[9_999] > 0
    assert values[2_500] > 0.7  # a schedule that moves once for each of four processes would have ended here


@given(st.sampled_from(KINDS), st.integers(1, 211), st.floats(0, 1), st.floats(0, 1))
def test_it_rises_then_never_rises_again_and_stays_above_zero(
    kind: str, updates: int, warmup: float, decay: float
) -> None:
    values = factors(updates, kind=kind, warmup=warmup, decay=decay)[:updates]
    peak = round(warmup * updates)
    assert all(0 < value <= 1 for value in values)
    assert all(a < b for a, b in itertools.pairwise(values[:peak]))
    assert all(a >= b for a, b in itertools.pairwise(values[peak:]))
    assert max(values) == 1.0


def test_it_is_a_function_of_the_update_alone() -> None:
    settings = ScheduleSettings(kind="cosine")
    assert learning_rate_factor(61, 97, settings) == factors(97, kind="cosine")[61]
    assert math.isclose(sum(factors(97, kind="cosine")), sum(reversed(factors(97, kind="cosine"))))


@given(st.sampled_from(KINDS), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(1e-3, 1e12))
def test_what_flows_is_a_function_of_the_share_alone_whatever_the_unit(
    kind: str, warmup: float, decay: float, share: float, total: float
) -> None:
    settings = ScheduleSettings(kind=kind, warmup=warmup, decay=decay)
    of_total, of_one = (learning_rate_factor(share * length, length, settings, grain=0.0) for length in (total, 1.0))
    assert 0 <= of_one <= 1
    if min(abs(share - place) for place in (warmup, 1 - decay, 1.0)) > 1e-6:  # a root is steep where it begins
        assert of_total == pytest.approx(of_one, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_flows_has_the_rates_of_a_run_of_many_updates(kind: str) -> None:
    settings = ScheduleSettings(kind=kind, warmup=0.13, decay=0.31)
    flowing = [learning_rate_factor(update / 1000, 10.0, settings, grain=0.0) for update in range(10_001)]
    assert flowing == pytest.approx(factors(10_000, kind=kind, warmup=0.13, decay=0.31), abs=1e-3)
    assert flowing[0] == 0.0
    assert flowing[-1] == (1.0 if kind == "constant" else pytest.approx(0.0, abs=1e-12))
