"""A checkpoint is a model directory that is whole or absent: written aside, synced to disk, and renamed.

RUN/step-00001000/            config.json  model.safetensors  tokenizer files     what everyone loads
RUN/step-00001000/training/   optimizer.safetensors  state.json  manifest.json    what only resuming needs
RUN/last -> step-00001000
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from minibert.errors import UserError

log = logging.getLogger("minibert")


@dataclass(frozen=True)
class TrainingState:
    """What a run needs beside the model to go on as if it had never stopped."""

    step: int
    optimizer: dict[str, Tensor]
    extra: dict[str, Any]
    """Small values by name (JSON): the gradient scaler, the tracker's run id, ..."""


def save(run: Path, state: TrainingState, write_model: Callable[[Path], None], keep: int) -> Path:
    """Write RUN/step-N, point RUN/last at it, and delete all but the newest `keep` complete checkpoints.

    `write_model` writes the model and its tokenizer into the directory it is given. Whatever goes wrong, what was
    saved before stays as it was. Raises `UserError` where the disk takes no more. For the main process; what is cut
    up over the processes is to be whole by then (`sharding.whole_state`, `optimizer_state.named_state`).
    """
    final = run / f"step-{state.step:08d}"
    aside = _aside(final)
    for left_by_a_kill in run.glob(".step-*.partial"):
        shutil.rmtree(left_by_a_kill, ignore_errors=True)
    try:
        (aside / "training").mkdir(parents=True)
        write_model(aside)
        save_file(state.optimizer, aside / "training" / "optimizer.safetensors")
        _write_json(aside / "training" / "state.json", {"step": state.step, **state.extra})
        _write_json(aside / "training" / "manifest.json", _manifest(aside))
        _sync_tree(aside)
        _replace(final, aside)
        _point(run / "last", final.name)
        _sync(run)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{final}: cannot be written ({error}); what was saved before is as it was") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    _rotate([path for path in checkpoints(run) if _step(path) <= state.step], keep)
    return final


def checkpoints(run: Path) -> list[Path]:
    """The step directories of a run, by the number of their step, the newest last."""
    steps = [path for path in run.glob("step-*") if re.fullmatch(r"step-\d+", path.name) and path.is_dir()]
    return sorted(steps, key=lambda path: (_step(path), -len(path.name)))


def newest(run: Path) -> Path | None:
    """The newest checkpoint that is whole; those that are not are named in a warning, and passed over."""
    for path in reversed(checkpoints(run)):
        try:
            verify(path)
            return path
        except UserError as error:
            log.warning("%s; it is passed over", error)
    return None


def verify(directory: Path) -> None:
    """Raise `UserError` naming the first file that is missing, cut short or altered."""
    for path, sha256 in _complete(directory).items():
        if _sha256(path) != sha256:
            raise UserError(f"{path}: its content is not what was saved")


def load_state(directory: Path) -> TrainingState:
    """The training state of a checkpoint; raises `UserError` where it is damaged or absent."""
    verify(directory)
    try:
        extra = json.loads((directory / "training" / "state.json").read_text(encoding="utf-8"))
        optimizer = load_file(directory / "training" / "optimizer.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{directory}/training: cannot be read ({error})") from None
    return TrainingState(extra.pop("step"), optimizer, extra)


def _complete(directory: Path) -> dict[Path, str]:
    """The SHA-256 of each file of a checkpoint; raises `UserError` unless all are there, as long as they were."""
    manifest = directory / "training" / "manifest.json"
    try:
        expected: dict[str, dict[str, Any]] = json.loads(manifest.read_text(encoding="utf-8"))
        files = [(directory / name, facts["bytes"], facts["sha256"]) for name, facts in expected.items()]
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{manifest}: not there; expected a checkpoint of a training run") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{manifest}: damaged") from None
    for path, size, _ in files:
        if not path.is_file():
            raise UserError(f"{path}: missing from the checkpoint")
        if path.stat().st_size != size:
            raise UserError(f"{path}: {path.stat().st_size} bytes, expected {size}")
    return {path: sha256 for path, _, sha256 in files}


def _rotate(saved: list[Path], keep: int) -> None:
    """Remove what is older than the newest `keep` that are complete: one that is not must not push out one that is."""
    complete = [path for path in saved if _is_complete(path)]
    if len(complete) > keep:
        for old in saved[: saved.index(complete[-keep])]:
            _remove(old)


def _is_complete(directory: Path) -> bool:
    try:
        return bool(_complete(directory))
    except UserError:
        return False


def _remove(directory: Path) -> None:
    """Take a checkpoint away; renamed first, for a kill may come between its files."""
    shutil.rmtree(directory.rename(_aside(directory)))


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _aside(path: Path) -> Path:
    """Where a checkpoint is made and taken apart; nobody takes it for one there."""
    return path.with_name(f".{path.name}.partial")


def _replace(final: Path, aside: Path) -> None:
    """Give `aside` its final name; what had it before stays a checkpoint, with more zeros, until that is done."""
    before = final.with_name(f"step-{_step(final):012d}")
    if final.exists():
        shutil.rmtree(before, ignore_errors=True)
        final.rename(before)
    aside.rename(final)
    if before.exists():
        _remove(before)


def _manifest(directory: Path) -> dict[str, dict[str, Any]]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {
        path.relative_to(directory).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in files
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _point(link: Path, target: str) -> None:
    """Make `link` a symbolic link to `target`, in one step."""
    aside = link.with_name(f".{link.name}.partial")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target)
    aside.replace(link)


def _sync_tree(directory: Path) -> None:
    for path in [*directory.rglob("*"), directory]:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
