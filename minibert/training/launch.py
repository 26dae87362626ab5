"""Where does it run? Processes, device and precision from accelerate; what cannot work here is refused at once."""

import os
from pathlib import Path
from typing import Literal

import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers

from minibert.errors import UserError
from minibert.training.trackers import TrackingSettings

Precision = Literal["auto", "no", "bf16", "fp16"]


def start(precision: Precision | None, tracking: TrackingSettings, run: Path) -> Accelerator:
    """The accelerator of this process; on the CPU the processes of a machine share its cores.

    `precision` None leaves the choice to `accelerate launch`; "auto" is bf16 where the device computes in it.
    Raises `UserError` for a precision or a layout that is not to be had here.
    """
    wanted = _bf16_where_native() if precision == "auto" else precision
    if (wanted or os.environ.get("ACCELERATE_MIXED_PRECISION")) == "fp16" and not torch.accelerator.is_available():
        raise UserError("precision: fp16 needs a GPU, and there is none here; use bf16 or no")
    if absent := set(tracking.trackers) - {str(tracker) for tracker in get_available_trackers()}:
        raise UserError(f"tracking.trackers: {sorted(absent)[0]} is not installed here")
    try:
        accelerator = Accelerator(mixed_precision=wanted, log_with=list(tracking.trackers) or None, project_dir=run)
    except (ValueError, RuntimeError) as error:
        raise UserError(f"accelerate cannot start here: {error}") from None
    if accelerator.device.type == "cpu":
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, _cores() // local))
    return accelerator


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _bf16_where_native() -> Literal["no", "bf16"]:
    if torch.cuda.is_available():
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "no"
    return "bf16" if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported() else "no"
