"""Which row stands where? The endless stream of rows of one length: block after block, epoch after epoch."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from minibert.data.blocks import Blocks
from minibert.data.pairs import PairSettings, Rows, plan_block
from minibert.errors import UserError


class Cursor(NamedTuple):
    """A place in the stream: a block, counted through all epochs, and the rows of it that are behind."""

    block: int = 0
    row: int = 0


class Part(NamedTuple):
    """Rows `begin` to `end` of the plan of a block."""

    block: int
    plan: Rows
    begin: int
    end: int


class Stream:
    """The rows of each length; the last two plans are kept."""

    def __init__(self, blocks: Blocks, settings: PairSettings) -> None:
        self._blocks, self._settings = blocks, settings
        self._plans: dict[tuple[int, int], Rows] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": {}}  # a worker that is not forked plans again, which is less than to copy

    def parts(self, cursor: Cursor, rows: int, max_length: int) -> Iterator[Part]:
        """The parts of plans that hold so many rows from a place on.

        Raises:
            UserError: there is no row in the whole corpus.
        """
        block, row = cursor
        empty = 0
        while rows > 0:
            plan = self._plan(block, max_length)
            empty = 0 if len(plan) else empty + 1
            if empty == self._blocks.count:
                raise UserError(
                    f"the corpus has no text for the objective {self._settings.objective}; expected a document of "
                    f"{self._settings.specials - 1} tokens at least"
                )
            end = min(row + rows, len(plan))
            if row < end:
                yield Part(block, plan, row, end)
                rows -= end - row
            block, row = block + 1, max(row - len(plan), 0)

    def advance(self, cursor: Cursor, rows: int, max_length: int) -> tuple[Cursor, int]:
        """The place after so many rows, and their tokens, special ones included."""
        tokens = 0
        for block, plan, begin, end in self.parts(cursor, rows, max_length):
            tokens += int(plan.lengths[begin:end].sum())
            cursor = Cursor(block, end) if end < len(plan) else Cursor(block + 1)
        return cursor, tokens

    def epochs(self, cursor: Cursor, max_length: int) -> float:
        """How often all text has passed at a place."""
        share = cursor.row / len(self._plan(cursor.block, max_length)) if cursor.row else 0.0
        return (cursor.block + share) / self._blocks.count

    def first_epoch(self, limit: int | None, max_length: int) -> int:
        """The rows of the first epoch, counted to `limit`."""
        rows = 0
        for block in range(self._blocks.count):
            if limit is not None and rows >= limit:
                return limit
            rows += len(self._plan(block, max_length))
        return rows if limit is None else min(rows, limit)

    def _plan(self, block: int, max_length: int) -> Rows:
        if (block, max_length) not in self._plans:
            settings = replace(self._settings, max_length=max_length)
            self._plans[block, max_length] = plan_block(self._blocks, settings, block)
            if len(self._plans) > 2:
                del self._plans[next(iter(self._plans))]
        return self._plans[block, max_length]
