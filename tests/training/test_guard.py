"""Which updates are left out: spikes by hand, a run that gets worse step by step, and a memory that is exact."""

import json
import math

import pytest

from minibert import UserError
from minibert.training.guard import HALF_LIFE, Guard, GuardSettings


def admitted(guard: Guard, losses: list[float]) -> list[bool]:
    return [guard.admits(loss, 1.0) for loss in losses]


def test_a_loss_of_more_than_twice_the_running_mean_is_left_out_and_counted() -> None:
    guard = Guard(GuardSettings(spike=2.0))
    assert admitted(guard, [3.0, 3.0, 6.0, 9.0, 7.0, 100.0]) == [True, True, True, False, True, False]
    assert guard.skipped == 2
    # The mean of 3, 3, 6 and 7, each with 0.9659 of the weight of the next: 18.298 / 3.8002.
    assert guard.reason == "a loss more than 2 times its running mean of 4.815"


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)])
def test_what_is_not_finite_is_left_out_even_as_the_first(loss: float, norm: float) -> None:
    guard = Guard(GuardSettings(spike=None))
    assert not guard.admits(loss, norm)
    assert guard.reason == "no finite gradient"
    assert admitted(guard, [1.0, 1e9]) == [True, True]  # without spike, whatever is finite is welcome


def test_the_running_mean_forgets_half_in_its_half_life_and_follows_accepted_losses_alone() -> None:
    guard = Guard(GuardSettings(spike=2.0))
    shares = [0.5 ** (age / HALF_LIFE) for age in range(300)]
    losses = [5 + math.sin(number) for number in range(300)]
    for loss in losses:
        assert guard.admits(loss, 1.0)
        assert not guard.admits(20.0, 1.0)
    mean = sum(share * loss for share, loss in zip(shares, reversed(losses), strict=True)) / sum(shares)
    assert guard.state()["mean"] == pytest.approx(mean, rel=1e-12)
    assert guard.state()["skipped"] == 300
    assert guard.verdict == ""  # none of them came twice in a row


def test_a_run_that_gets_worse_step_by_step_is_not_left_out() -> None:
    guard = Guard(GuardSettings(spike=2.0))
    assert all(admitted(guard, [1.02**number for number in range(500)]))


def test_a_run_that_jumps_to_another_level_and_stays_there_ends_after_its_patience() -> None:
    guard = Guard(GuardSettings(spike=2.0, patience=4))
    assert all(admitted(guard, [1.0] * 50))
    for number in range(1, 5):
        assert guard.verdict == ""
        assert not guard.admits(5.0, 1.0), number
    assert guard.verdict == "a loss more than 2 times its running mean of 1 in 4 updates in a row"
    assert guard.admits(1.0, 1.0)
    assert guard.verdict == ""


def test_its_memory_survives_a_file_to_the_bit() -> None:
    straight, losses = Guard(GuardSettings(patience=3)), [1.1, 0.7, 9.0, 0.9, 9.0, 9.0]
    admitted(straight, losses)
    resumed = Guard(GuardSettings(patience=3))
    resumed.load(json.loads(json.dumps(straight.state())))
    assert admitted(straight, [9.0, 0.8, 1.7]) == admitted(resumed, [9.0, 0.8, 1.7]) == [False, True, True]
    assert straight.state() == resumed.state()
    fresh = Guard(GuardSettings())
    fresh.load(json.loads(json.dumps(fresh.state())))
    assert fresh.admits(1e9, 1.0)


def test_a_spike_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match=r"guard\.spike: 0\.5 leaves ordinary updates out; expected more than 1"):
        GuardSettings(spike=0.5)
