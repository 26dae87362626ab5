"""What a run writes down as it goes: metrics that survive a kill, and what it runs on."""

import json
import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from minibert import UserError
from minibert.training.tracking import Clock, Metrics, Progress, Record, begin_run, read_metrics

LINES = [
    {"step": 1, "split": "train", "values": {"loss": 2.5}},
    {"step": 2, "split": "train", "values": {"loss": 2.25}},
    {"step": 2, "split": "validation", "values": {"loss": 3.0, "perplexity": 20.0}},
    {"step": 3, "split": "train", "values": {"loss": 2.125}},
]


def write(path: Path, lines: list[dict[str, Any]], *, resume_from: int = 0) -> None:
    metrics = Metrics(path, resume_from=resume_from, writes=True)
    for line in lines:
        metrics.write(line["step"], line["split"], line["values"])
    metrics.close()


def test_each_line_is_a_json_object_that_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path, resume_from=0, writes=True)
    for number, line in enumerate(LINES, start=1):
        metrics.write(line["step"], line["split"], line["values"])
        assert [json.loads(text) for text in path.read_text("utf-8").split("\n")[:-1]] == LINES[:number]
    metrics.close()
    assert read_metrics(path) == LINES


def test_what_json_has_no_number_for_is_null(tmp_path: Path) -> None:
    write(tmp_path / "m", [{"step": 1, "split": "train", "values": {"a": math.nan, "b": math.inf, "c": 2, "d": 0.1}}])
    assert '"values": {"a": null, "b": null, "c": 2, "d": 0.1}' in (tmp_path / "m").read_text("utf-8")


def test_a_resumed_file_forgets_the_later_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, LINES)
    write(path, [{"step": 3, "split": "train", "values": {"loss": 7.0}}], resume_from=2)
    assert [line["values"]["loss"] for line in read_metrics(path)] == [2.5, 2.25, 3.0, 7.0]
    write(path, [])
    assert path.read_bytes() == b""
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_last_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, LINES)
    path.write_bytes(path.read_bytes()[:-5])
    assert read_metrics(path) == LINES[:-1]
    write(path, LINES[3:], resume_from=3)
    assert read_metrics(path) == LINES
    assert read_metrics(tmp_path / "absent") == []


def test_only_the_main_process_writes(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl", resume_from=0, writes=False)
    metrics.write(1, "train", {"loss": 1.0})
    metrics.close()
    assert list(tmp_path.iterdir()) == []


def test_off_a_terminal_progress_is_a_line_for_each_thing_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(100, start=20, share=0.2, shows=True)
    progress.advance(0.21)
    progress.show(21, "train", {"loss": 2.34567, "tokens": 123456.0, "learning_rate": 1e-4})
    progress.close()
    Progress(None, start=0, share=0.0, shows=False).show(1, "train", {"loss": 2.0})
    err = capsys.readouterr().err
    assert err.startswith("step 21/100 train: loss 2.346  tokens 123,456  learning_rate 0.0001  left 00:")
    assert err.count("\n") == 1


def test_where_the_end_is_not_counted_in_steps_progress_is_a_share(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([100.0, 130.0])
    monkeypatch.setattr("minibert.training.tracking.time.monotonic", lambda: next(now))
    progress = Progress(None, start=20, share=0.25, shows=True)
    progress.advance(0.5)
    progress.show(21, "train", {"loss": 2.0})
    assert capsys.readouterr().err == "step 21 (50%) train: loss 2  left 01:00\n"


@pytest.mark.usefixtures("one_process")
def test_a_record_says_the_same_everywhere_and_closes_after_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator = Accelerator(cpu=True)
    logged: list[tuple[dict[str, float], int]] = []
    monkeypatch.setattr(accelerator, "log", lambda values, step: logged.append((values, step)))
    with pytest.raises(KeyError), Record(tmp_path, accelerator, total=5) as record:  # noqa: PT012
        record.log(3, "validation", {"loss": 0.5})
        raise KeyError
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 3, "split": "validation", "values": {"loss": 0.5}}]
    assert logged == [({"validation/loss": 0.5}, 3)]
    assert "step 3/5 validation: loss 0.5" in capsys.readouterr().err


def test_the_clock_leaves_pauses_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(time=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: now.time)
    clock = Clock()
    clock.count(300)
    now.time += 2
    with clock.paused():
        now.time += 50
    now.time += 1
    clock.count(300)
    assert clock.values() == {"tokens_per_second": 200.0}
    clock.count(7)
    now.time += 7
    assert clock.values() == {"tokens_per_second": 1.0}


@pytest.mark.usefixtures("one_process")
def test_a_run_begins_with_its_config_and_what_it_runs_on(tmp_path: Path) -> None:
    begin_run(tmp_path / "new" / "run", "steps: 7\n", Accelerator(cpu=True))
    assert (tmp_path / "new" / "run" / "config.yaml").read_bytes() == b"steps: 7\n"
    facts = json.loads((tmp_path / "new" / "run" / "environment.json").read_text("utf-8"))
    assert facts["packages"]["torch"] == torch.__version__
    assert (facts["device"], facts["processes"], facts["precision"]) == ("cpu", 1, "no")
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert sorted(path.name for path in (tmp_path / "new" / "run").iterdir()) == ["config.yaml", "environment.json"]
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file/run: cannot be written"):
        begin_run(tmp_path / "file" / "run", "", Accelerator(cpu=True))
