"""Trackers start with neither key nor network, and a resumed run keeps its id."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import processes
import pytest
import small
import wandb

from minibert.training.checkpoint import load_state
from minibert.training.trackers import TrackingSettings, finish_trackers, start_trackers


def test_one_process_warns_that_wandb_has_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for is_main in (True, False):
        elsewhere = SimpleNamespace(is_main_process=is_main, init_trackers=lambda *_, **__: None)
        start_trackers(elsewhere, TrackingSettings(["wandb"]), {}, "id")
        monkeypatch.delenv("WANDB_MODE", raising=False)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["wandb has no key here"]
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password x", encoding="utf-8")
    caplog.clear()
    start_trackers(elsewhere, TrackingSettings(["wandb"]), {}, "id")
    assert caplog.records == []


def test_trackers_are_given_flat_values_and_the_id_of_the_run() -> None:
    given: dict[str, Any] = {}
    accelerator = SimpleNamespace(
        is_main_process=True, init_trackers=lambda project, **options: given.update(project=project, **options)
    )
    config = {"model": {"hidden_size": 7, "id2label": None}, "seeds": [1, 2], "output": "x"}
    start_trackers(accelerator, TrackingSettings(["tensorboard"], project="p"), config, "20250102-abc")
    assert given["project"] == "p"
    assert given["config"] == {"model.hidden_size": 7, "model.id2label": "None", "seeds": "[1, 2]", "output": "x"}
    assert given["init_kwargs"]["wandb"]["id"] == "20250102-abc"
    start_trackers(accelerator, TrackingSettings(), config, "other")
    assert given["init_kwargs"]["wandb"]["id"] == "20250102-abc"


def test_where_wandb_does_not_reach_its_server_it_goes_offline(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    modes: list[str | None] = []

    def begin(*_: object, **__: object) -> None:
        modes.append(os.environ.get("WANDB_MODE"))
        if len(modes) == 1:
            raise wandb.errors.CommError("context deadline\nexceeded")

    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr(wandb, "teardown", lambda: modes.append("torn down"))
    accelerator = SimpleNamespace(is_main_process=True, init_trackers=begin)
    start_trackers(accelerator, TrackingSettings(["wandb"]), {}, "id")
    assert modes == ["online", "torn down", "offline"]
    assert [record.getMessage() for record in caplog.records] == [
        "wandb does not reach its server (context deadline exceeded): it logs offline"
    ]


def test_trackers_of_a_seed_end_without_parting_the_processes() -> None:
    ended: list[str] = []
    trackers = [SimpleNamespace(finish=lambda name=name: ended.append(name)) for name in ("wandb", "tensorboard")]
    accelerator = SimpleNamespace(trackers=trackers)
    finish_trackers(accelerator)
    finish_trackers(accelerator)
    assert ended == ["wandb", "tensorboard"]


def test_without_key_and_network_wandb_works_offline_and_a_resumed_run_keeps_its_id(
    corpus: Path, tmp_path: Path
) -> None:
    home = {"HOME": str(tmp_path), "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true", "https_proxy": "127.0.0.1:9"}
    options = [f"--corpus={corpus}", f"--output={tmp_path / 'run'}", *small.PRETRAINING, "--training.steps=4"]
    options += ["--training.save_every=2", "--tracking.trackers=[wandb]"]
    first = processes.run(processes.PRETRAIN, *options, said=tmp_path / "first", **home)
    assert first.code == 0, first.err
    assert first.err.count("wandb has no key here") == 1
    run_id = load_state(tmp_path / "run" / "last").extra["run_id"]
    lines = small.read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 4]

    (tmp_path / "run" / "step-00000004" / "model.safetensors").unlink()
    again = processes.run(processes.PRETRAIN, *options, said=tmp_path / "again", **home)
    assert again.code == 0, again.err
    assert f"resuming from {tmp_path / 'run' / 'step-00000002'}" in again.err
    assert load_state(tmp_path / "run" / "last").extra["run_id"] == run_id
    assert small.read_metrics(tmp_path / "run") == lines
    folders = [path.name for path in (tmp_path / "wandb").iterdir() if path.name.startswith("offline-run-")]
    assert len(folders) >= 1
    assert all(name.endswith(f"-{run_id}") for name in folders)
