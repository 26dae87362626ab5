"""How long a run lasts: durations by hand, one end and no other, and where each unit stops."""

import math

import pytest

from minibert import UserError
from minibert.training.horizon import Position, Stopwatch, horizon, parse_duration
from minibert.training.schedules import ScheduleSettings, learning_rate_factor


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30m", 1800),
        ("1h30m", 5400),
        ("90s", 90),
        ("2d", 172800),
        ("45", 45),
        ("1.5h", 5400),
        (" 1d2h3m4.5s ", 93784.5),
        ("1h30", 3630),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "30 minutes", "30m1h", "-5m", "1e3", "1:30", "1h 30m", "٣m", "30M"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not a duration; expected such as 90s, 30m, 1h30m or 2d"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "expected one of steps, epochs, tokens and budget, got none"),
        ({"steps": 3, "budget": "1h"}, "got steps and budget"),
        ({"budget": "0s"}, r"training\.budget: 0s is no length of a run"),
        ({"epochs": 0.0}, r"training\.epochs: 0\.0 is no length of a run"),
    ],
)
def test_exactly_one_end_is_expected(given: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        horizon(**given)


@pytest.mark.parametrize(
    ("given", "updates"),
    [
        ({"steps": 7}, 7),
        ({"epochs": 0.7}, 7),  # 7 tenths of an epoch, whose sum in floating point is less than 0.7
        ({"epochs": 0.61}, 7),
        ({"tokens": 700}, 7),
        ({"tokens": 601}, 7),
        ({"budget": "21s"}, 7),
        ({"budget": "18.1s"}, 7),
    ],
)
def test_the_update_that_reaches_the_end_is_the_last(given: dict[str, object], updates: int) -> None:
    end, position = horizon(**given), Position()
    seen = []
    while not end.is_over(position):
        seen.append(end.progress(position))
        position = Position(
            position.step + 1, position.epochs + 0.1, position.tokens + 100, seconds=position.seconds + 3.0
        )
    assert position.step == updates
    assert seen == sorted(seen)
    assert seen[0] == 0.0
    assert end.progress(position) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("given", "position"),
    [
        ({"epochs": 3.0}, Position(epochs=2.7)),
        ({"tokens": 30_000}, Position(tokens=27_000)),
        ({"budget": "30m"}, Position(seconds=1620)),
    ],
)
def test_what_flows_has_the_rate_of_a_run_of_many_updates(given: dict[str, object], position: Position) -> None:
    settings, end = ScheduleSettings(kind="wsd", warmup=0.1, decay=0.2), horizon(**given)
    factor = learning_rate_factor(end.done(position), end.total, settings, grain=end.grain)
    assert factor == pytest.approx(1 - math.sqrt(0.5))
    assert horizon(steps=9).grain == 1.0  # updates are counted one by one


def test_what_is_left_is_told_from_the_speed_since_the_run_was_resumed() -> None:
    resumed = Position(step=100, seconds=5000.0)
    assert horizon(steps=300).left(Position(step=150, seconds=5100.0), since=resumed) == pytest.approx(300.0)
    assert horizon(steps=300).left(resumed, since=resumed) == math.inf
    assert horizon(budget="2h").left(Position(step=150, seconds=5100.0)) == 2100.0


def test_a_resumed_run_keeps_the_time_that_it_has_used() -> None:
    now = [1000.0]
    first = Stopwatch(clock=lambda: now[0])
    now[0] += 70
    used = first.read()
    now[0] += 100_000  # the machine was another's
    second = Stopwatch(used, clock=lambda: now[0])
    assert second.read() == 70.0
    now[0] += 20
    assert second.read() == 90.0
    assert horizon(budget="90s").is_over(Position(seconds=second.read()))
