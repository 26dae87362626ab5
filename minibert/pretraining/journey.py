"""A pretraining run on its way: which batch comes next, and where in the run does it stand?"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from minibert.data.batches import Batch, Request
from minibert.data.course import Course, Place
from minibert.training.horizon import Horizon, Position


class Journey:
    """The steps of a run from one place to its end.

    Args:
        course: what is asked for at a place.
        horizon: how long the run is.
        place: where it begins, or goes on.
        clock: seconds that the run has taken; the same on all processes.
    """

    def __init__(self, course: Course, horizon: Horizon, place: Place, clock: Callable[[], float]) -> None:
        self._course, self._horizon, self._clock = course, horizon, clock
        self._ahead: deque[tuple[Position, Place]] = deque()
        self._asked: tuple[Place, Position] | None = None
        self.place = place
        """Where the step after the present one begins."""
        self.position = self._position(place)
        """How far the run had come before the present step."""

    def requests(self) -> Iterator[Request]:
        """What is asked for at each step; they may be taken some steps ahead of the updates."""
        place = self.place
        while not self._horizon.is_over(position := self._position(place)):
            request = self._course.request(place, self._horizon.progress(position))
            place = self._course.after(place, request)
            self._ahead.append((position, place))
            yield request

    def updates(self, fetched: Iterable[tuple[Request, list[Batch]]]) -> Iterator[tuple[int, list[Batch]]]:
        """The number of each step, counted from 0, with its batches; `place` and `position` are those of the last."""
        for request, batches in fetched:
            self.position, self.place = self._ahead.popleft()
            yield request.step, batches

    @property
    def is_over(self) -> bool:
        """Whether the present step is the last; all processes must ask together."""
        return not self._ahead and self._horizon.is_over(self._position(self.place))

    @property
    def progress(self) -> float:
        """The share of the run that is over when the present step is done."""
        place = self.place
        return self._horizon.progress(Position(place.step, self.epochs, place.tokens, self.position.seconds))

    @property
    def seconds(self) -> float:
        """How long the run has taken until now; all processes must ask together."""
        return self._clock()

    @property
    def epochs(self) -> float:
        """How often all text was read when the present step is done."""
        return self._course.epochs(self.place)

    def _position(self, place: Place) -> Position:
        """Where a place lies in the run. Asked again it says the same, for what was not the end is to be followed."""
        if self._asked is None or self._asked[0] != place:
            self._asked = place, Position(place.step, self._course.epochs(place), place.tokens, self._clock())
        return self._asked[1]
