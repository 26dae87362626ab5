"""What does a run ask for at each step? Rows, their length and the share of masks, by how far the run has come.

    |<- batch 64 ->|<-------------- batch 256 --------------->|        stages that end early change the batch size,
    |<------------- 128 tokens a row ------------>|<-- 512 -->|        the length of rows, or both
    0 %          10 %                            90 %     100 %

A place in the run says all that resuming needs to know of the data. It can be stored, or be found again by walking
from the beginning; either way the batches that follow are the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minibert.data.batches import Cursor, PretrainingBatches, Request
from minibert.data.masking import MaskingSettings, masking_probability
from minibert.errors import UserError
from minibert.types import PositiveInt, UnitInterval


@dataclass(frozen=True)
class Stage:
    """What is different in the first part of a run."""

    until: UnitInterval
    """The share of the run at which the stage ends."""
    max_length: PositiveInt | None = None
    """Tokens in a row; null: as `pairs.max_length` says."""
    batch_size: PositiveInt | None = None
    """Rows in an update; null: as `training.batch_size` says."""


@dataclass(frozen=True)
class Place:
    """How far a run has come before a step."""

    step: int = 0
    block: int = 0
    row: int = 0
    """Rows of that block of the stream of text that were read."""
    max_length: int = 0
    """Length of the rows that are counted; 0 before the first."""
    tokens: int = 0
    """Real tokens that were read."""


class Course:
    """Turns a place and a progress into what is asked for there, and that into the next place.

    Args:
        batches: makes what is asked for, and knows how many rows a block has.
        batch_size, max_length: rows in an update and tokens in a row, where no stage says otherwise.
        stages: the first whose end lies ahead holds.
        masking: its share of masks may fall over the run.
    """

    def __init__(
        self,
        batches: PretrainingBatches,
        *,
        batch_size: int,
        max_length: int,
        stages: Sequence[Stage],
        masking: MaskingSettings,
    ) -> None:
        _check(stages, max_length, batches)
        self._batches, self._stages, self._masking = batches, stages, masking
        self._rest = Stage(1.0, max_length, batch_size)

    def request(self, place: Place, progress: float) -> Request:
        """The batch that belongs there; `progress` is the share of the run that is over.

        Where the length of rows changes, the rest of a block that was begun is left out.
        """
        stage = next((stage for stage in self._stages if progress < stage.until), self._rest)
        length = stage.max_length or self._rest.max_length or 0
        cursor = Cursor(place.block, place.row)
        if place.max_length not in (0, length):
            cursor = self._batches.skip(cursor)
        rows = stage.batch_size or self._rest.batch_size or 0
        return Request(place.step, cursor, rows, length, masking_probability(progress, self._masking))

    def after(self, place: Place, request: Request) -> Place:
        """The place where the next step begins."""
        cursor, tokens = self._batches.advance(request.cursor, request.rows, request.max_length)
        return Place(place.step + 1, cursor.block, cursor.row, request.max_length, place.tokens + tokens)

    def epochs(self, place: Place) -> float:
        """How often all text was read."""
        length = place.max_length or self._rest.max_length or 0
        return self._batches.epochs(Cursor(place.block, place.row), length)

    def walk(self, step: int, progress: Callable[[Place], float]) -> Place:
        """The place before `step`, found from the beginning; no batch is made on the way."""
        place = Place()
        while place.step < step:
            place = self.after(place, self.request(place, progress(place)))
        return place


def _check(stages: Sequence[Stage], max_length: int, batches: PretrainingBatches) -> None:
    ends = [stage.until for stage in stages]
    if ends != sorted(set(ends)):
        raise UserError(f"stages: end at {ends}; expected each to end after the one before")
    for number, stage in enumerate(stages):
        if stage.max_length is not None and stage.max_length > max_length:
            raise UserError(
                f"stages.{number}.max_length: {stage.max_length} is more than pairs.max_length, {max_length}, which is "
                "the length of the last stage and of evaluation"
            )
        if stage.max_length is not None:
            batches.check_length(stage.max_length)
