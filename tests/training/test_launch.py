"""Where a run runs: what cannot work here is refused, and the cores are shared."""

import os
from pathlib import Path

import processes
import pytest
import torch
from accelerate.tracking import LoggerType

from minibert import UserError
from minibert.training import launch
from minibert.training.trackers import TrackingSettings

pytestmark = pytest.mark.usefixtures("one_process")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU here")
def test_fp16_is_refused_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="precision: fp16 needs a GPU, and there is none here; use bf16 or no"):
        launch.start("fp16", TrackingSettings(), tmp_path)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")  # as `accelerate launch --mixed_precision fp16` does
    with pytest.raises(UserError, match="fp16 needs a GPU"):
        launch.start(None, TrackingSettings(), tmp_path)
    assert launch.start("no", TrackingSettings(), tmp_path).mixed_precision == "no"


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU here")
def test_a_script_refuses_fp16_in_one_line(corpus: Path, tmp_path: Path) -> None:
    options = f"--corpus={corpus}", f"--output={tmp_path / 'run'}", "--training.precision=fp16"
    ended = processes.run(processes.PRETRAIN, *options, said=tmp_path / "said")
    assert ended == (2, "", "error: precision: fp16 needs a GPU, and there is none here; use bf16 or no\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("native", [True, False])
def test_auto_is_bf16_where_the_cpu_computes_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert launch.start("auto", TrackingSettings(), tmp_path).mixed_precision == ("bf16" if native else "no")


def test_no_choice_leaves_the_precision_to_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert launch.start(None, TrackingSettings(), tmp_path).mixed_precision == "bf16"


@pytest.mark.parametrize(("cores", "processes_here", "threads"), [(6, 2, 3), (1, 1, 1), (2, 5, 1)])
def test_processes_share_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, processes_here: int, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes_here))
    launch.start("no", TrackingSettings(), tmp_path)
    assert torch.get_num_threads() == threads


def test_where_the_system_tells_no_affinity_all_cores_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    launch.start("no", TrackingSettings(), tmp_path)
    assert torch.get_num_threads() == 3


def test_a_tracker_that_is_not_installed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "get_available_trackers", lambda: [LoggerType("wandb")])
    with pytest.raises(UserError, match=r"tracking\.trackers: tensorboard is not installed here"):
        launch.start("no", TrackingSettings(["tensorboard"]), tmp_path)
