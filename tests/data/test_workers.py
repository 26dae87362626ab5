"""Work on several processes: its order, its errors, and that no process outlives its parent."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import processes
import pytest

from minibert.data.workers import in_order
from minibert.errors import UserError


def slower_first() -> Callable[[int], tuple[int, int]]:
    def work(number: int) -> tuple[int, int]:
        time.sleep(0.02 * (number % 3 == 0))
        if number == 23:
            raise UserError(f"{number} is too much")
        if number == 29:
            os._exit(9)
        return number * number, os.getpid()

    return work


def test_results_come_in_the_order_of_tasks_that_are_read_as_they_are_needed() -> None:
    read: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(19):
            read.append(number)
            yield number

    results = []
    for square, pid in in_order(slower_first, tasks(), processes=2):
        results.append(square)
        assert pid != os.getpid()
        assert len(read) <= len(results) + 4
    assert results == [number * number for number in range(19)]


@pytest.mark.parametrize(("tasks", "processes"), [(range(7), 1), (range(3), 2), (range(0), 2)])
def test_one_process_or_a_few_tasks_need_no_other_process(tasks: range, processes: int) -> None:
    assert list(in_order(slower_first, tasks, processes=processes)) == [(n * n, os.getpid()) for n in tasks]


def test_an_error_in_a_process_comes_out_as_it_is_and_a_killed_process_is_told() -> None:
    with pytest.raises(UserError, match=r"^23 is too much$"):
        list(in_order(slower_first, [21, 22, 23, 24], processes=2))
    with pytest.raises(UserError, match="one of 2 worker processes was killed"):
        list(in_order(slower_first, [27, 28, 29, 30], processes=2))


def test_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    running = processes._start(_work_for_ever, (tmp_path,), tmp_path / "said", {})
    processes.wait_until(lambda: len(list(tmp_path.glob("pid-*"))) == 2, running)
    running.kill()
    running.process.join()
    end = time.monotonic() + 20
    while any(_is_there(int(path.name.partition("-")[2])) for path in tmp_path.glob("pid-*")):
        assert time.monotonic() < end, "a worker is still there"
        time.sleep(0.01)


def _is_there(pid: int) -> bool:
    try:
        return not Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].startswith(" Z")
    except FileNotFoundError:
        return False


def _work_for_ever(folder: Path) -> None:
    list(in_order(sleeper, [folder] * 99, processes=2))


def sleeper() -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        (folder / f"pid-{os.getpid()}").touch()
        time.sleep(60)

    return work
