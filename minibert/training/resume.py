"""From where does a run go on? From its newest whole checkpoint, if the run is still the same."""

import logging
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import yaml

from minibert.errors import UserError
from minibert.training import checkpoint

log = logging.getLogger("minibert")


def find(resume: str, run: Path) -> Path | None:
    """The checkpoint that `resume` means: "auto" the newest whole one of `run`, "never" none, else a path.

    Raises `UserError` where there is something to lose: a run that would be begun anew over its checkpoints.
    """
    if resume not in ("auto", "never"):
        checkpoint.verify(Path(resume))
        return Path(resume)
    saved = checkpoint.checkpoints(run)
    if resume == "never" and saved:
        raise UserError(f"{run}: holds {len(saved)} checkpoints; resume them (--resume auto), or choose another output")
    found = checkpoint.newest(run) if saved else None
    if saved and found is None:
        raise UserError(f"{run}: none of its {len(saved)} checkpoints is whole; choose another output to begin anew")
    return found


def refuse_changes(run: Path, config: Mapping[str, Any], free: Set[str], allowed: bool = False) -> None:
    """Raise `UserError` listing each field that differs from the config that the run began with.

    `config` is the plain dictionary of the new config; fields in `free`, by dotted path or group, may change. Where
    all changes are `allowed`, those beyond are listed in a warning, one a line.
    """
    path = run / "config.yaml"
    if not path.is_file():
        return
    before = _flat(_read(path))
    now = _flat(config)
    changed = [
        f"{name} was {before.get(name)!r}, is {now.get(name)!r}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name) and not _is_free(name, free)
    ]
    if changed and allowed:
        log.warning("%s goes on with another config:%s", run, "".join(f"\n  {change}" for change in changed))
    elif changed:
        raise UserError(f"{run}: the run to resume had another config: {'; '.join(changed)}")


def _read(path: Path) -> Mapping[str, Any]:
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError):
        config = None
    if not isinstance(config, dict):
        raise UserError(f"{path}: damaged; expected the config that the run began with")
    return config


def _is_free(name: str, free: Set[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:length]) in free for length in range(1, len(parts) + 1))


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + str(name): value}
    return flat
