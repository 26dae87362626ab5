"""Where metrics go beside metrics.jsonl: wandb or tensorboard, through accelerate; no key and no network is needed."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from accelerate import Accelerator

log = logging.getLogger("minibert")


@dataclass(frozen=True)
class TrackingSettings:
    """Where metrics go beside metrics.jsonl."""

    trackers: list[Literal["wandb", "tensorboard"]] = field(default_factory=list)
    """Trackers to log to as well; wandb works offline by itself where there is no key."""
    project: str = "minibert"
    """Project of the trackers."""


def start_trackers(accelerator: Accelerator, settings: TrackingSettings, config: dict[str, Any], run_id: str) -> None:
    """Start the trackers through accelerate; wandb continues the run `run_id`, and needs neither key nor network."""
    if not settings.trackers:
        return
    import wandb  # here, for runs without trackers need not wait for it

    if "wandb" in settings.trackers and accelerator.is_main_process and not _wandb_has_key():
        log.warning("wandb has no key here: it logs offline into ./wandb; `wandb sync` sends it later")
        os.environ.setdefault("WANDB_MODE", "offline")
    options = {"wandb": {"id": run_id, "resume": "allow", "name": run_id}}
    begin = partial(accelerator.init_trackers, settings.project, config=_flat(config), init_kwargs=options)
    try:
        begin()
    except wandb.errors.CommError as error:
        log.warning("wandb does not reach its server (%s): it logs offline", " ".join(str(error).split()))
        os.environ["WANDB_MODE"] = "offline"
        wandb.teardown()
        begin()


def finish_trackers(accelerator: Accelerator) -> None:
    """End what `start_trackers` started; the processes stay together, which `accelerator.end_training` parts."""
    for tracker in accelerator.trackers:
        tracker.finish()
    accelerator.trackers = []


def _wandb_has_key() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_MODE") in ("offline", "disabled"):
        return True
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    return netrc.is_file() and "wandb" in netrc.read_text(encoding="utf-8", errors="replace")


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value if isinstance(value, int | float | str | bool) else str(value)
    return flat
