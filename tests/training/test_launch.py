"""Where a run runs: what cannot work here, or is not what was asked for, is refused, and the cores are shared."""

import os
import re
import subprocess
import sys
from pathlib import Path

import processes
import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.tracking import LoggerType

from minibert import UserError
from minibert.cores import cores as cores_here
from minibert.training import launch
from minibert.training.launch import Layout, asked_for, misfit, mismatch
from minibert.training.trackers import TrackingSettings

CONFIGS = processes.ROOT / "configs" / "accelerate"

SCRIPT = """
import sys
from pathlib import Path
from minibert import UserError
from minibert.training import launch
from minibert.training.trackers import TrackingSettings

try:
    accelerator = launch.start("no", TrackingSettings(), Path())
except UserError as error:
    sys.exit(f"error: {error}")
Path(sys.argv[1], str(accelerator.process_index)).write_text(str(accelerator.num_processes), encoding="utf-8")
accelerator.end_training()
"""

pytestmark = pytest.mark.usefixtures("one_process")


@pytest.fixture
def no_default_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`accelerate config` may have been run by whoever tests."""
    monkeypatch.setattr(launch, "default_config_file", str(tmp_path / "absent.yaml"))


def accelerate(*options: str) -> list[str]:
    """The command line of a launcher as the system tells it."""
    return ["/usr/bin/python", "/usr/bin/accelerate", "launch", *options, "train.py", "--num_processes", "97"]


@pytest.mark.usefixtures("no_default_config")
@pytest.mark.parametrize(
    ("command", "environment", "layout"),
    [
        ([], {}, Layout()),
        (["bash", "accelerate", "train.py"], {}, Layout()),
        (accelerate(), {}, Layout()),
        (accelerate("--cpu", "--num_processes", "3"), {"ACCELERATE_USE_CPU": "True"}, Layout(3, cpu=True)),
        (accelerate("--multi_gpu", "--num_processes=3"), {"WORLD_SIZE": "3"}, Layout(3)),
        (accelerate("--config_file", f"{CONFIGS / 'one-process.yaml'}"), {}, Layout()),
        (accelerate(f"--config_file={CONFIGS / 'two-processes-cpu.yaml'}"), {"WORLD_SIZE": "2"}, Layout(2, cpu=True)),
        (accelerate(f"--config_file={CONFIGS / 'ddp.yaml'}", "--num_processes=5"), {"WORLD_SIZE": "5"}, Layout(5)),
        (accelerate(f"--config_file={CONFIGS / 'fsdp.yaml'}", "--num_processes=2"), {}, Layout(2, engine="FSDP")),
        (["python", "-m", "accelerate.commands.launch", "--num_processes", "3", "x.py"], {}, Layout(3)),
        (["python", "/usr/bin/accelerate-launch", "--num_processes", "3", "x.py"], {}, Layout(3)),
        (["python", "/usr/bin/torchrun", "--nproc_per_node=3", "x.py"], {"WORLD_SIZE": "3"}, Layout(3)),
        ([], {"WORLD_SIZE": "3", "ACCELERATE_USE_CPU": "1"}, Layout(3, cpu=True)),
        ([], {"ACCELERATE_USE_FSDP": "true", "WORLD_SIZE": "2"}, Layout(2, engine="FSDP")),
        ([], {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_USE_CPU": "false"}, Layout(engine="DEEPSPEED")),
    ],
)
def test_what_was_asked_for_is_read_from_the_launcher_and_the_environment(
    command: list[str], environment: dict[str, str], layout: Layout
) -> None:
    assert asked_for(command, environment) == layout


def test_the_default_config_of_the_user_is_asked_for_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "default_config_file", str(CONFIGS / "two-processes-cpu.yaml"))
    assert asked_for(accelerate(), {}) == Layout(2, cpu=True)
    assert asked_for(accelerate("--cpu"), {}) == Layout(1, cpu=True)  # as accelerate does, which does not read it then


@pytest.mark.parametrize(
    ("asked", "runs", "words"),
    [
        (Layout(2), Layout(2), None),
        (Layout(2, engine="FSDP"), Layout(2, engine="FSDP"), None),
        (Layout(2), Layout(1), "2 processes were asked for, and 1 runs; use .*/ddp.yaml --num_processes 2`"),
        (Layout(3, cpu=True), Layout(1, cpu=True), "3 .* and 1 runs; use .*/two-processes-cpu.yaml --num_processes 3`"),
        (
            Layout(engine="FSDP"),
            Layout(cpu=True),
            "FSDP .* and a whole model in each process runs on the CPU; use",
        ),
    ],
)
def test_what_runs_must_be_what_was_asked_for(asked: Layout, runs: Layout, words: str | None) -> None:
    assert_says(mismatch(asked, runs), words)


@pytest.mark.parametrize(
    ("asked", "environment", "local", "gpus", "words"),
    [
        (Layout(), {}, 1, 0, None),
        (Layout(16), {}, 8, 8, None),
        (Layout(3, cpu=True), {}, 3, 0, None),
        (
            Layout(8),
            {},
            8,
            3,
            "8 processes .* on this machine, and 3 GPUs are seen; use --num_processes 3,",
        ),
        (Layout(2), {"CUDA_VISIBLE_DEVICES": ""}, 2, 0, r"and 0 GPUs are seen \(CUDA_VISIBLE_DEVICES is ''\); use"),
        (Layout(2, engine="FSDP"), {"FSDP_VERSION": "2"}, 2, 2, None),
        (Layout(2, engine="FSDP"), {}, 2, 2, "FSDP 1 was asked for, and only FSDP 2 is supported; use .*/fsdp.yaml`"),
        (Layout(2, engine="DEEPSPEED"), {}, 2, 2, "DEEPSPEED was asked for, and is not supported"),
    ],
)
def test_what_would_not_start_is_refused_before(
    asked: Layout, environment: dict[str, str], local: int, gpus: int, words: str | None
) -> None:
    assert_says(misfit(asked, environment, local=local, gpus=gpus), words)


def assert_says(reason: str | None, words: str | None) -> None:
    assert (reason is None) == (words is None), reason
    assert words is None or re.search(words, str(reason)), reason


@pytest.mark.parametrize(
    ("options", "world"),
    [
        (["--cpu", "--num_processes=2"], None),
        ([f"--config_file={CONFIGS / 'two-processes-cpu.yaml'}", "--main_process_port=0"], 2),
    ],
)
def test_accelerate_starts_what_it_was_asked_for_or_the_script_says_so(
    tmp_path: Path, options: list[str], world: int | None
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    ended = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", *options, str(script), str(tmp_path)],
        env=clean,
        capture_output=True,
        encoding="utf-8",
        timeout=100,
    )
    if world is None:
        assert ended.returncode != 0
        assert "error: 2 processes were asked for, and 1 runs; use `accelerate launch --config_file" in ended.stderr
    else:
        assert ended.returncode == 0, ended.stderr
        assert [(tmp_path / str(rank)).read_text("utf-8") for rank in range(world)] == [str(world)] * world


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_config_is_one_of_accelerate_and_says_when_to_use_it(path: Path) -> None:
    config = load_config_from_file(str(path))
    engines = {"one-process": "NO", "fsdp": "FSDP"}
    assert config.distributed_type.value == engines.get(path.stem, "MULTI_GPU")
    assert re.match(r"# .{40}", path.read_text("utf-8"))


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


def test_bf16_is_refused_on_a_gpu_without_it_and_fp16_where_the_cpu_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    with pytest.raises(UserError, match="fp16 needs a GPU"):
        launch.start("fp16", TrackingSettings(), tmp_path)
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    with pytest.raises(UserError, match="precision: bf16 is not in the hardware of Tesla T4; use fp16 or no"):
        launch.start("bf16", TrackingSettings(), tmp_path)


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


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 16),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 16),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2.5),
        (
            {
                "proc/self/cgroup": "0::/pod/job\n",
                "sys/fs/cgroup/pod/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/pod/job/cpu.max": "700000 100000\n",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "5:memory:/x\n4:cpu,cpuacct:/docker/7f\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/7f/cpu.cfs_quota_us": "150000\n",
                "sys/fs/cgroup/cpu,cpuacct/docker/7f/cpu.cfs_period_us": "50000\n",
            },
            3,
        ),
        (
            {  # in a container that sees its own group as the top, under another name
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/7f\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            16,
        ),
    ],
)
def test_the_share_of_a_container_limits_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: float
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert cores_here(tmp_path) == cores


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
