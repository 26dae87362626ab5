"""The course of a run: stages, falling mask rates, and places that can be stored or found again by walking."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import WORDS, like_prose

from minibert.data import blocks, packing
from minibert.data.batches import PretrainingBatches
from minibert.data.course import Course, Place, Stage
from minibert.data.masking import MaskingSettings
from minibert.data.pairs import PairSettings
from minibert.errors import UserError

STORE = like_prose(sentences=709)
STEPS = 97
STAGES = [Stage(0.1, max_length=29, batch_size=3), Stage(0.6, max_length=29), Stage(0.8, batch_size=11)]
MASKING = MaskingSettings(initial_probability=0.3)


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    """Three blocks an epoch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", 251)
        patch.setattr(packing, "LANE", 31)
        yield


def make(stages: list[Stage] | None = None) -> tuple[Course, PretrainingBatches]:
    batches = PretrainingBatches(STORE, WORDS, seed=3, pairs=PairSettings(max_length=61), masking=MASKING)
    return Course(batches, batch_size=7, max_length=61, stages=stages or [], masking=MASKING), batches


def progress(place: Place) -> float:
    return place.step / STEPS


def places(course: Course, steps: int, measure: Callable[[Place], float] = progress) -> list[Place]:
    found = [Place()]
    for _ in range(steps):
        found.append(course.after(found[-1], course.request(found[-1], measure(found[-1]))))
    return found


def test_a_stage_holds_until_its_share_of_the_run_is_over():
    course, _ = make(STAGES)
    shapes = [(r.rows, r.max_length) for r in (course.request(p, progress(p)) for p in places(course, STEPS - 1))]
    assert shapes == [(3, 29)] * 10 + [(7, 29)] * 49 + [(11, 61)] * 19 + [(7, 61)] * 19


def test_the_share_of_masks_falls_over_the_run():
    course, batches = make()
    requests = [course.request(place, progress(place)) for place in places(course, STEPS - 1)]
    assert requests[0].probability == 0.3
    assert requests[-1].probability == pytest.approx(0.15 + 0.15 / STEPS)
    assert [r.probability for r in requests] == sorted((r.probability for r in requests), reverse=True)
    first, last = (batches[r] for r in (requests[0], requests[-1]))
    shares = [((b["labels"] != -100).sum() / b["attention_mask"].sum()).item() for b in (first, last)]
    assert shares == pytest.approx([0.3, 0.15], abs=0.02)


def test_each_step_goes_on_where_the_one_before_ended_and_counts_its_tokens():
    course, batches = make()
    found = places(course, 60)
    for before, after in pairwise(found):
        request = course.request(before, progress(before))
        assert after.tokens - before.tokens == batches[request]["attention_mask"].sum()
        assert (request.cursor.block, request.cursor.row) == (before.block, before.row)
        assert after.step == before.step + 1
    epochs = [course.epochs(place) for place in found]
    assert epochs == sorted(epochs)
    assert epochs[-1] > 1


def test_where_the_length_changes_the_next_block_begins():
    course, _ = make([Stage(0.5, max_length=29)])
    found = places(course, STEPS)
    change = next(i for i, place in enumerate(found) if progress(place) >= 0.5)
    request = course.request(found[change], progress(found[change]))
    assert found[change].row > 0
    assert (request.cursor, request.max_length) == ((found[change].block + 1, 0), 61)


@given(stop=st.integers(0, STEPS), stages=st.sampled_from([[], STAGES]))
@settings(max_examples=20, deadline=None)
def test_a_stored_place_and_a_walk_from_the_beginning_give_the_same_batches(stop, stages):
    course, batches = make(stages)
    stored = places(course, stop)[-1]
    other, again = make(stages)
    walked = other.walk(stop, progress)
    assert walked == stored
    left = batches[course.request(stored, progress(stored))]
    right = again[other.request(walked, progress(walked))]
    assert all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([Stage(0.5), Stage(0.5)], r"stages: end at \[0.5, 0.5\]; expected each to end after the one before"),
        ([Stage(0.5), Stage(0.7, max_length=4)], "max_length is 4; three special tokens and two texts need 5"),
        ([Stage(0.5, max_length=62)], "stages.0.max_length: 62 is more than pairs.max_length, 61"),
    ],
)
def test_stages_that_make_no_sense_are_refused(stages, message):
    with pytest.raises(UserError, match=message):
        make(stages)
