"""How does a folder appear whole or not at all? It is written aside, synced to disk, and renamed to its final name."""

import os
import shutil
from pathlib import Path

from minibert.errors import UserError


def check_writable(directory: Path) -> None:
    """Raise `UserError` where `directory` could not be made, before the work that is to fill it."""
    path = directory.resolve()
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(f"{directory} cannot be written: {there} is no folder that you may write to")


def publish(aside: Path, directory: Path, *, replaced: Path | None = None) -> None:
    """Give the folder `aside` the name `directory`; what was there goes to `replaced`, and back if this fails.

    Raises `FileExistsError` where `directory` has come to hold something, unless it is to be replaced.
    """
    sync(aside)
    if not directory.exists() or not any(directory.iterdir()):
        return _rename(aside, directory)
    if replaced is None:
        raise FileExistsError(f"{directory} exists")
    shutil.rmtree(replaced, ignore_errors=True)
    directory.rename(replaced)
    try:
        _rename(aside, directory)
    except BaseException:
        replaced.rename(directory)
        raise


def sync(directory: Path) -> None:
    """Have the system write the files and their names to disk, so that a power cut loses nothing of them."""
    for path in [*directory.rglob("*"), directory]:
        _fsync(path)


def _rename(aside: Path, directory: Path) -> None:
    try:
        aside.rename(directory)
    except OSError as error:
        if directory.exists():
            raise FileExistsError(f"{directory} exists") from error
        raise
    _fsync(directory.parent)


def _fsync(path: Path) -> None:
    if path.is_dir() and os.name != "posix":
        return  # only POSIX opens folders
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
