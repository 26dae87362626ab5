"""How does a folder appear whole or not at all? It is written aside, synced to disk, and renamed to its final name."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minibert.errors import UserError


def check_writable(directory: Path) -> None:
    """Raise `UserError` where `directory` could not be made, before the work that is to fill it."""
    path = directory.resolve()
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(f"{directory} cannot be written: {there} is no folder that you may write to")


@contextmanager
def published(directory: Path, *, replace: bool = False) -> Iterator[Path]:
    """A temporary folder to fill, beside `directory`, whose name it takes at the end; removed if anything fails.

    Raises `FileExistsError` where `directory` has come to hold something meanwhile, unless it is to be replaced, and
    `UserError` where it cannot be written (no permission, disk full).
    """
    directory = directory.resolve()
    aside = directory.with_name(f".{directory.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        aside.mkdir(parents=True)
        yield aside
        _sync(aside)
        _rename(aside, directory, replace=replace)
    except OSError as error:
        if isinstance(error, FileExistsError):
            raise
        raise UserError(f"cannot write {directory}: {error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sync(directory: Path) -> None:
    """Have the system write the files and their names to disk, so that a power cut after the rename loses nothing."""
    for path in [*directory.rglob("*"), directory]:
        _fsync(path)


def _rename(aside: Path, directory: Path, *, replace: bool) -> None:
    if not directory.exists() or not any(directory.iterdir()):
        return _rename_new(aside, directory)
    if not replace:
        raise FileExistsError(f"{directory} exists")
    old = aside.with_suffix(".old")
    directory.rename(old)
    try:
        _rename_new(aside, directory)
    except BaseException:
        old.rename(directory)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _rename_new(aside: Path, directory: Path) -> None:
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
