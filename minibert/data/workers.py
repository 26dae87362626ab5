"""How is work spread over processes while its order is kept? A few tasks are on their way, the rest waits unread."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from minibert.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")

FEW = 4
"""Fewer tasks than these are done sooner than other processes have begun."""

_work: Callable[[Any], Any]
"""What a worker process does with a task."""


def in_order(
    make: Callable[[], Callable[[Task], Result]], tasks: Iterable[Task], *, processes: int
) -> Generator[Result, None, None]:
    """The result of each task, in the order of the tasks, as `map(make(), tasks)` would give them.

    `make` is called once in each process. Few tasks, and those of one process, are done here. The processes end with
    this one, however it ends. Close the iterator where it is not read to its end.

    Raises what a task raises, and `UserError` where a process was killed.
    """
    tasks = iter(tasks)
    first = list(islice(tasks, FEW if processes > 1 else 0))
    if len(first) < FEW:
        yield from map(make(), chain(first, tasks))
        return
    # Processes come from a server that has no threads, no locked file and no other file of this process.
    context = multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")
    ends_with_us, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(make, ends_with_us))
    try:
        yield from _results(pool, chain(first, tasks), processes + 2)
    except BrokenProcessPool as error:
        raise UserError(
            f"one of {processes} worker processes was killed, perhaps as memory ran out; try fewer processes"
        ) from error
    finally:
        ours.close()
        pool.shutdown(cancel_futures=True)


def _results(pool: ProcessPoolExecutor, tasks: Iterable[Any], most: int) -> Iterator[Any]:
    waiting: deque[Future[Any]] = deque()
    for task in tasks:
        waiting.append(pool.submit(_do, task))
        if len(waiting) == most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _begin(make: Callable[[], Callable[[Any], Any]], ends_with_parent: Connection) -> None:
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the parent tells the others
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, args=(ends_with_parent,), daemon=True).start()
    _work = make()


def _end_with_parent(ends_with_parent: Connection) -> None:
    wait([ends_with_parent])
    os._exit(1)


def _do(task: Any) -> Any:
    return _work(task)
