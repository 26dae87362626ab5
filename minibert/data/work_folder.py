"""Where does a corpus grow, so that a killed run goes on? In a locked folder beside it, which is gone at the end.

.CORPUS.work/   lock  shard-1-of-3.lock     held while a process works there; the system lets go when it ends
                made-from.json              settings and sources: a folder of others is emptied
                tokenizer/  notes.json      see `preparation`
                reading.json  pieces/       see `pieces`
                parts.npz  merge.json       see `merge`
                corpus/                     becomes the corpus
                replaced/                   what was at its place before
"""

import contextlib
import errno
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from minibert.data.progress import Notify, silent
from minibert.errors import UserError
from minibert.files import write_whole

_PAUSE = 0.2
"""Seconds between two looks at a lock that another process holds."""


@dataclass(frozen=True)
class Shard:
    """The part of the pieces that one of several machines makes: those with `number % count == index % count`."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def has(self, piece: int) -> bool:
        """Whether the shard makes the piece of this number."""
        return piece % self.count == self.index % self.count


class WorkFolder(NamedTuple):
    """The names in the folder."""

    path: Path

    @property
    def made_from(self) -> Path:
        """The settings and sources that the folder is for."""
        return self.path / "made-from.json"

    @property
    def tokenizer(self) -> Path:
        """The tokenizer that encodes the pieces; whole or absent."""
        return self.path / "tokenizer"

    @property
    def notes(self) -> Path:
        """What was odd about the tokenizer: a list of sentences."""
        return self.path / "notes.json"

    @property
    def reading(self) -> Path:
        """How many pieces and documents the text has, once it was read to the end."""
        return self.path / "reading.json"

    @property
    def pieces(self) -> Path:
        """The folder of the encoded pieces."""
        return self.path / "pieces"

    @property
    def parts(self) -> Path:
        """The part of each document, once all pieces were there."""
        return self.path / "parts.npz"

    @property
    def merge(self) -> Path:
        """How far the pieces were put together."""
        return self.path / "merge.json"

    @property
    def corpus(self) -> Path:
        """The folder that becomes the corpus."""
        return self.path / "corpus"

    @property
    def replaced(self) -> Path:
        """Where the corpus goes that was at the place of this one."""
        return self.path / "replaced"

    def shard_count(self) -> int:
        """Of how many shards the last one was that began here; 1 where there was none."""
        locks = sorted(self.shard_locks(), key=lambda path: path.stat().st_mtime_ns)
        return int(locks[-1].stem.rpartition("-")[2]) if locks else 1

    def shard_locks(self) -> list[Path]:
        """The locks of all shards that began here."""
        return list(self.path.glob("shard-*-of-*.lock"))

    def has_pieces(self) -> bool:
        """Whether anything is there that would take long to make again."""
        return self.parts.is_file() or (self.pieces.is_dir() and any(self.pieces.glob("*.npz")))


def work_folder(output: Path) -> WorkFolder:
    """The work folder of the corpus at `output`."""
    return WorkFolder(output.with_name(f".{output.name}.work"))


@contextmanager
def locked(
    output: Path, made_from: dict[str, Any], *, shard: Shard | None = None, notify: Notify = silent
) -> Iterator[WorkFolder]:
    """The work folder of `output`, for this process alone, or together with other shards.

    Where another process works there, `notify` tells, and this one waits. At the end the folder is removed; where the
    work fails, it stays if pieces were made, and the next run goes on from them; but where the user has to change
    something first, it stays only if shards were made. A shard leaves it to the merge.

    Raises `UserError` where the folder cannot be written.
    """
    folder = work_folder(output)
    try:
        with _enter(folder, output, made_from, shard, notify) as locks:
            try:
                yield folder
            except BaseException as error:
                locks.close()
                if not folder.has_pieces() or (not folder.shard_locks() and _is_about_the_input(error)):
                    clear_leftovers(output)
                elif not _is_about_the_input(error):
                    notify(f"what is done is kept in {folder.path}; the same command goes on from there")
                raise
            if not shard:
                _remove(folder, output)
    except OSError as error:
        if isinstance(error, FileExistsError):
            raise
        raise UserError(f"cannot write {output}: {error}") from error


@contextmanager
def held(path: Path, notify: Notify, message: str) -> Iterator[None]:
    """Hold a lock; where another process does, `notify` tells with `message`, and this one waits."""
    with _wait_for(lambda locks: _try_lock(path, locks), notify, message):
        yield


def clear_leftovers(output: Path) -> None:
    """Remove the work folder of a corpus that is finished, unless a process works there."""
    folder = work_folder(output)
    if folder.path.is_dir():
        with ExitStack() as locks:
            if _try_lock(folder.path / "lock", locks, shared=False):
                _remove(folder, output)


def _enter(
    folder: WorkFolder, output: Path, made_from: dict[str, Any], shard: Shard | None, notify: Notify
) -> ExitStack:
    """Take the locks, waiting for them; they are free again when the stack is closed, or this process ends."""
    content = json.dumps(made_from, indent=2, ensure_ascii=False)
    message = f"another process makes {output}; waiting for it"
    return _wait_for(lambda locks: _try_to_enter(folder, output, content, shard, locks), notify, message)


def _wait_for(try_to: Callable[[ExitStack], bool], notify: Notify, message: str) -> ExitStack:
    for attempt in itertools.count():
        with ExitStack() as locks:
            if try_to(locks):
                return locks.pop_all()
        if attempt == 1:  # at the first one the other may just have finished
            notify(message)
        time.sleep(_PAUSE)
    raise AssertionError


def _try_to_enter(folder: WorkFolder, output: Path, content: str, shard: Shard | None, locks: ExitStack) -> bool:
    lock = folder.path / "lock"
    folder.path.mkdir(parents=True, exist_ok=True)
    if shard is None or not _is_made_from(folder, content):
        with ExitStack() as alone:
            if not _try_lock(lock, alone, shared=False):
                return False
            if not _is_made_from(folder, content):
                _empty(folder, output)
                write_whole(folder.made_from, content)
            if shard is None:
                locks.enter_context(alone.pop_all())
                return True
    own = folder.path / f"shard-{shard.index % shard.count}-of-{shard.count}.lock"
    return _try_lock(lock, locks, shared=True) and _is_made_from(folder, content) and _try_lock(own, locks)


def _try_lock(path: Path, locks: ExitStack, *, shared: bool = False) -> bool:
    """Lock a file until `locks` is closed; False where another process holds it, or has removed it meanwhile."""
    if os.name != "posix":
        return True
    import fcntl  # POSIX only

    try:
        file = locks.enter_context(path.open("ab"))
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            return True  # a file system without locks: better unprotected than not at all
        raise


def _is_about_the_input(error: BaseException) -> bool:
    """Whether the same command would fail again; an error that another one caused, of disk or memory, may pass."""
    return isinstance(error, UserError) and error.__cause__ is None


def _is_made_from(folder: WorkFolder, content: str) -> bool:
    try:
        return folder.made_from.read_text(encoding="utf-8") == content
    except FileNotFoundError:
        return False


def _empty(folder: WorkFolder, output: Path) -> None:
    """Remove what runs of other settings left; a corpus that one of them moved aside goes back first."""
    if folder.replaced.is_dir() and not output.exists():
        folder.replaced.rename(output)
    for path in folder.path.iterdir():
        if path.name == "lock":
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _remove(folder: WorkFolder, output: Path) -> None:
    """Remove the folder, its lock last; another process may have come in by then, and keeps its own."""
    with contextlib.suppress(OSError):
        _empty(folder, output)
        (folder.path / "lock").unlink()
        folder.path.rmdir()
