"""Where does it run? On the processes, the engine and in the precision that were asked for, or not at all."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import torch
from accelerate import Accelerator
from accelerate.commands.config.config_args import default_config_file, load_config_from_file
from accelerate.commands.launch import launch_command_parser
from accelerate.tracking import get_available_trackers
from accelerate.utils import str_to_bool

from minibert.cores import cores
from minibert.errors import UserError
from minibert.training.trackers import TrackingSettings

Precision = Literal["auto", "no", "bf16", "fp16"]
_ENGINES = ("FSDP", "DEEPSPEED", "MEGATRON_LM")


@dataclass(frozen=True)
class Layout:
    """How many processes on all machines together, on the CPU or not, and the engine that cuts the model up, if any."""

    processes: int = 1
    cpu: bool = False
    engine: str | None = None


def start(precision: Precision | None, tracking: TrackingSettings, run: Path) -> Accelerator:
    """The accelerator of this process; on the CPU the processes of a machine share its cores.

    `precision` None leaves the choice to `accelerate launch`; "auto" is bf16 where the device computes in it.
    Raises `UserError` for a precision or a layout that is not to be had here, or that is not the one asked for.
    """
    asked = asked_for(launcher(), os.environ)
    gpus = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    wanted = bf16_where_native(asked.cpu) if precision == "auto" else precision
    _refuse(misfit(asked, os.environ, local=_processes_here(), gpus=gpus))
    _refuse(_unable(wanted or os.environ.get("ACCELERATE_MIXED_PRECISION"), on_gpu=gpus > 0 and not asked.cpu))
    if absent := set(tracking.trackers) - {str(tracker) for tracker in get_available_trackers()}:
        raise UserError(f"tracking.trackers: {sorted(absent)[0]} is not installed here")
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"  # it unties the embeddings, and each process loads them
    try:
        trackers = list(tracking.trackers) or None
        accelerator = Accelerator(mixed_precision=wanted, cpu=asked.cpu, log_with=trackers, project_dir=run)
    except (ValueError, RuntimeError, ImportError) as error:
        raise UserError(f"accelerate cannot start here: {error}") from None
    _refuse(mismatch(asked, _running(accelerator)))
    if accelerator.device.type == "cpu":
        torch.set_num_threads(max(1, int(cores()) // _processes_here()))
    return accelerator


def launcher() -> list[str]:
    """The command line of the process that started this one; empty where the system does not tell."""
    with suppress(psutil.Error):
        parent = psutil.Process().parent()
        return list(parent.cmdline()) if parent else []
    return []


def asked_for(command: Sequence[str], environment: Mapping[str, str]) -> Layout:
    """What was asked for: by `command`, if it is an `accelerate launch`, and its config file, and by the environment.

    The launcher hands on less than it is told: nothing of `use_cpu` to several processes, no number to one.
    """
    options = _accelerate_options(command)
    engines = [name for name in _ENGINES if _flag(environment, f"ACCELERATE_USE_{name}")]
    processes, cpu = int(environment.get("WORLD_SIZE", "1")), _flag(environment, "ACCELERATE_USE_CPU")
    if options is not None:
        given = launch_command_parser().parse_args(options)
        file = given.config_file or (default_config_file if Path(default_config_file).is_file() else None)
        config = load_config_from_file(file) if file and not (given.config_file is None and given.cpu) else None
        processes = given.num_processes or getattr(config, "num_processes", None) or processes
        cpu |= given.cpu or getattr(config, "use_cpu", False)
        engines += [str(config.distributed_type.value)] if config else []
    engine = next((name for name in engines if name in _ENGINES), None)
    return Layout(processes, cpu, engine)


def misfit(asked: Layout, environment: Mapping[str, str], *, local: int, gpus: int) -> str | None:
    """Why `local` processes on this machine with its `gpus` would not start, or train wrongly; None if they will do."""
    if asked.engine == "FSDP" and not asked.cpu and environment.get("FSDP_VERSION", "1") != "2":
        return f"FSDP 1 was asked for, and only FSDP 2 is supported; use {_config('fsdp')}"
    if asked.engine in ("DEEPSPEED", "MEGATRON_LM"):
        return (
            f"{asked.engine} was asked for, and is not supported: it steps by itself, after each micro-batch; "
            f"to cut a model up, use {_config('fsdp')}"
        )
    if asked.cpu or local <= max(1, gpus):
        return None
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    seen = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
    return (
        f"{local} processes were asked for on this machine, and {gpus} GPUs are seen{seen}; "
        f"use --num_processes {max(1, gpus)}, or for processes on the CPU {_config('two-processes-cpu')}"
    )


def mismatch(asked: Layout, runs: Layout) -> str | None:
    """What is wrong where something else `runs` than was `asked`; None where nothing is."""
    if asked.engine != runs.engine:
        where = "on the CPU" if runs.cpu else "here"
        return (
            f"{asked.engine or 'no engine'} was asked for, and {runs.engine or 'a whole model in each process'} runs "
            f"{where}; use {_config('two-processes-cpu' if runs.cpu else 'ddp')}"
        )
    if asked.processes != runs.processes:
        use = _config("two-processes-cpu" if runs.cpu else "ddp", f" --num_processes {asked.processes}")
        return f"{asked.processes} processes were asked for, and {runs.processes} runs; use {use}"
    return None


def is_launched() -> bool:
    """Whether `accelerate launch` or `torchrun` started this process, and waits for it."""
    return "TORCHELASTIC_RUN_ID" in os.environ or _accelerate_options(launcher()) is not None


def bf16_where_native(cpu: bool) -> Literal["no", "bf16"]:
    """What `auto` means: bf16 where the GPU, or with `cpu` the CPU, computes in it."""
    if torch.cuda.is_available() and not cpu:
        return "bf16" if _gpu_has_bf16() else "no"
    return "bf16" if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported() else "no"


def _config(name: str, options: str = "") -> str:
    return f"`accelerate launch --config_file configs/accelerate/{name}.yaml{options}`"


def _accelerate_options(command: Sequence[str]) -> list[str] | None:
    """What follows `accelerate launch`, `accelerate-launch` or `python -m accelerate.commands.launch`."""
    words = [Path(word).name.removesuffix(".exe") for word in command]
    for place, word in enumerate(words):
        if word in ("accelerate", "accelerate.commands.accelerate_cli") and words[place + 1 : place + 2] == ["launch"]:
            return list(command[place + 2 :])
        if word in ("accelerate-launch", "accelerate.commands.launch"):
            return list(command[place + 1 :])
    return None


def _running(accelerator: Accelerator) -> Layout:
    engine = str(accelerator.distributed_type.value)
    on_cpu = accelerator.device.type == "cpu"
    return Layout(accelerator.num_processes, on_cpu, engine if engine in _ENGINES else None)


def _unable(precision: str | None, *, on_gpu: bool) -> str | None:
    """Why there is no computing in this precision."""
    if precision == "fp16" and not on_gpu:
        return "precision: fp16 needs a GPU, and there is none here; use bf16 or no"
    if precision == "bf16" and on_gpu and torch.cuda.is_available() and not _gpu_has_bf16():
        return f"precision: bf16 is not in the hardware of {torch.cuda.get_device_name()}; use fp16 or no"
    return None


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise UserError(reason)


def _flag(environment: Mapping[str, str], name: str) -> bool:
    return bool(str_to_bool(environment.get(name) or "false"))


def _processes_here() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _gpu_has_bf16() -> bool:
    return torch.cuda.is_bf16_supported(including_emulation=False)
