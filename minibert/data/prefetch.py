"""Who makes the batches while the model trains? Worker processes, some steps ahead; the values are the same without."""

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from minibert.data.assembly import Arrays
from minibert.data.batches import Batch, PretrainingBatches, Request, check_world, tensors
from minibert.data.blocks import Integers
from minibert.data.masking import IGNORED

_STOPS = {signal.SIGTERM, signal.SIGUSR1} if os.name == "posix" else set()


def prefetch(
    batches: PretrainingBatches,
    requests: Iterable[Request],
    *,
    rank: int,
    world: int,
    size: int | None,
    workers: int,
) -> Iterator[tuple[Request, list[Batch]]]:
    """Each request with the micro-batches of one process; `workers` processes make them beforehand, 0 is none.

    Beside what `PretrainingBatches` gives, a micro-batch has `masked_positions` [N], since a model that looked for them
    would wait for its GPU: the places row · width + column of all labels that are not -100, then 0, the place of a
    [CLS], until N is a multiple of 8.

    The values are the same for any number of workers. The requests are taken in this process, each when it is its
    turn to be worked on, with workers two for each ahead. The workers end when the iterator does.

    Raises:
        UserError: there are more processes than rows in a batch.
    """
    shares, wanted = _Shares(batches, rank, world, size), _checked(requests, world)
    made: Iterable[tuple[Request, list[Arrays]]] = map(shares.__getitem__, wanted)
    if workers:
        # Arrays are sent, for each tensor would hold an open file. The loader has a generator of its own, for otherwise
        # it draws from the global one, and that changes dropout.
        loader: Any = DataLoader(
            shares,  # type: ignore[arg-type]
            sampler=wanted,
            batch_size=None,
            collate_fn=_unchanged,
            num_workers=workers,
            generator=torch.Generator(),
            worker_init_fn=_obey_the_parent_alone,
        )
        with _stops_blocked():
            made = iter(loader)
    for request, arrays in made:
        yield request, [tensors(micro) for micro in arrays]


@dataclass(frozen=True)
class _Shares:
    """What a worker makes of a request: the micro-batches of one process."""

    batches: PretrainingBatches
    rank: int
    world: int
    size: int | None

    def __getitem__(self, request: Request) -> tuple[Request, list[Arrays]]:
        made = self.batches.arrays(request, rank=self.rank, world=self.world, size=self.size)
        return request, [arrays | {"masked_positions": _masked_positions(arrays["labels"])} for arrays in made]


def _masked_positions(labels: Integers) -> Integers:
    places = np.flatnonzero(labels != IGNORED)
    return np.pad(places, (0, -len(places) % 8))


def _checked(requests: Iterable[Request], world: int) -> Iterator[Request]:
    """In this process, as an error in a worker loses its type and gets a traceback."""
    for request in requests:
        check_world(world, request.rows)
        yield request


@contextmanager
def _stops_blocked() -> Iterator[None]:
    """Processes that are started inside get none of the signals that ask to stop.

    One that is sent to a whole group of processes is for the one that trains: it needs its workers to finish the step.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS) if _STOPS else set()
    try:
        yield
    finally:
        if _STOPS:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _obey_the_parent_alone(worker: int) -> None:
    if _STOPS:
        threading.Thread(target=_end_when_told, args=(os.getppid(),), daemon=True).start()


def _end_when_told(parent: int) -> None:
    while signal.sigwaitinfo(_STOPS).si_pid != parent:
        pass
    os._exit(0)


def _unchanged(made: Any) -> Any:
    return made
