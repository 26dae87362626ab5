"""pretrain/train.py as a person runs it: killed at any moment and started again, it is the run that none disturbed."""

import contextlib
import dataclasses
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import processes
import pytest
import small
import torch
from processes import PRETRAIN, Running
from safetensors.torch import load_file

from minibert import BertForMaskedLM, BertForPreTraining, UserError, cli
from minibert.data.corpus import PrepareConfig, build_corpus
from minibert.pretraining import evaluation
from minibert.training import checkpoint

Started = Callable[..., None]


@pytest.fixture
def pretraining(script: Callable[[Path], ModuleType], one_process: None, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module; it writes no report, which takes longer than all else."""
    module = script(PRETRAIN)
    monkeypatch.setattr(module.report, "write_run_report", lambda run: None)
    return module


def call(module: ModuleType, *options: str) -> None:
    """Run the script in this process."""
    module.main(cli.parse(module.PretrainConfig, [*small.PRETRAINING, *options]))


def weights(run: Path) -> dict[str, bytes]:
    """The last checkpoint, but for the id of the run."""
    files = ("config.json", "model.safetensors", "vocab.txt", "training/optimizer.safetensors")
    return {name: (run / "last" / name).read_bytes() for name in files}


def test_a_run_leaves_what_the_design_promises(pretrained: Path, corpus: Path) -> None:
    names = {path.name for path in pretrained.iterdir()}
    assert names == {"config.yaml", "environment.json", "metrics.jsonl", "report.html", "last"} | {
        "step-00000036",
        "step-00000040",
    }
    assert (pretrained / "last").readlink() == Path("step-00000040")
    lines = small.read_metrics(pretrained)
    assert [line["step"] for line in lines if line["split"] == "train"] == list(range(1, 41))
    assert [line["step"] for line in lines if line["split"] == "validation"] == [13, 26, 39, 40]
    assert lines[0]["values"].keys() == {
        *("loss", "mlm_loss", "nsp_loss", "learning_rate", "gradient_norm", "masked_share"),
        *("skipped", "tokens", "epoch"),
    }
    assert lines[-1]["values"].keys() == {"mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy", "perplexity"}
    assert all(0.1 < line["values"]["masked_share"] < 0.2 for line in lines if line["split"] == "train")
    assert lines[-1]["values"]["mlm_loss"] < lines[0]["values"]["mlm_loss"] - 0.3
    assert json.loads((pretrained / "environment.json").read_text("utf-8"))["processes"] == 1
    assert BertForPreTraining.from_pretrained(pretrained / "last").config.vocab_size == 131


def test_killed_at_three_moments_it_is_the_run_that_nobody_disturbed(
    corpus: Path, pretrained: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    moments = [_after_steps(run, 2), _while_saving(run), _after_steps(run, 14, late=0.01)]
    _kill_and_resume(corpus, run, moments, at_least=2)
    assert small.read_metrics(run) == small.read_metrics(pretrained)
    assert weights(run) == weights(pretrained)


def test_killed_as_soon_as_its_last_checkpoint_is_there_it_lacks_nothing(
    corpus: Path, pretrained: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    _kill_and_resume(corpus, run, [(run / "step-00000040").is_dir], at_least=0)
    assert small.read_metrics(run) == small.read_metrics(pretrained)


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--training.seed=3"], ["--training.precision=bf16", "--training.workers=1"]])
def test_killed_at_twenty_moments_it_is_the_run_that_nobody_disturbed(
    corpus: Path, tmp_path: Path, options: list[str]
) -> None:
    run, straight = tmp_path / "run", tmp_path / "straight"
    for running in _started(corpus, straight, 1, *options):
        assert running.wait().code == 0
    moments = _random_moments(run, random.Random(options[0]), between=14, saving=6)
    _kill_and_resume(corpus, run, moments, *options, at_least=14)
    assert small.read_metrics(run) == small.read_metrics(straight)
    assert weights(run) == weights(straight)


@pytest.mark.slow
def test_two_processes_killed_at_ten_moments_are_the_run_that_nobody_disturbed(corpus: Path, tmp_path: Path) -> None:
    run, straight = tmp_path / "run", tmp_path / "straight"
    options = [f"--corpus={corpus}", *small.PRETRAINING]
    both = processes.start_all(PRETRAIN, *options, f"--output={straight}", said=tmp_path / "straight-said", world=2)
    assert [process.wait().code for process in both] == [0, 0]
    killed = 0
    for number, moment in enumerate(_random_moments(run, random.Random(7), between=7, saving=3)):
        said = tmp_path / f"said-{number}"
        both = processes.start_all(PRETRAIN, *options, f"--output={run}", said=said, world=2)
        processes.wait_until(moment, both[0])
        for process in both:
            process.kill()
        killed += [process.wait().code for process in both] == [-9, -9]
        for path in checkpoint.checkpoints(run):
            checkpoint.verify(path)
    both = processes.start_all(PRETRAIN, *options, f"--output={run}", said=tmp_path / "last-said", world=2)
    assert [process.wait().code for process in both] == [0, 0]
    assert killed >= 7
    assert small.read_metrics(run) == small.read_metrics(straight)
    assert weights(run) == weights(straight)


@pytest.mark.slow
def test_stopped_on_one_process_it_goes_on_with_two(corpus: Path, tmp_path: Path) -> None:
    options = [f"--corpus={corpus}", *small.PRETRAINING, "--model.hidden_dropout_prob=0"]
    options += ["--model.attention_probs_dropout_prob=0"]
    straight = processes.run(PRETRAIN, *options, f"--output={tmp_path / 'straight'}", said=tmp_path / "said")
    assert straight.code == 0, straight.err
    run = tmp_path / "run"
    running = processes.start(PRETRAIN, *options, f"--output={run}", said=tmp_path / "killed")
    processes.wait_until(lambda: _after_steps(run, 17)(), running)
    running.kill()
    assert running.wait().code == -9
    both = processes.start_all(PRETRAIN, *options, f"--output={run}", said=tmp_path / "both", world=2)
    assert [process.wait().code for process in both] == [0, 0]
    for line, other in zip(small.read_metrics(run), small.read_metrics(tmp_path / "straight"), strict=True):
        assert line["values"] == pytest.approx(other["values"], rel=1e-4, abs=1e-4)


@pytest.mark.slow
def test_compiled_it_is_the_same_run_to_rounding(corpus: Path, tmp_path: Path) -> None:
    options = [
        f"--corpus={corpus}",
        *small.PRETRAINING,
        "--model.hidden_dropout_prob=0",
        "--training.save_every=40",
        "--training.micro_batch_size=8",
    ]
    options += ["--model.attention_probs_dropout_prob=0"]
    for compiled in ("false", "true"):
        run = tmp_path / compiled
        running = processes.start(
            PRETRAIN, *options, f"--compile={compiled}", f"--output={run}", said=tmp_path / "said"
        )
        ended = running.wait(600)
        assert ended.code == 0, ended.err
    for line, other in zip(*(small.read_metrics(tmp_path / name) for name in ("true", "false")), strict=True):
        assert line["values"] == pytest.approx(other["values"], rel=1e-4, abs=1e-4)
    assert BertForPreTraining.from_pretrained(tmp_path / "true" / "last").fresh_weights == []


def test_a_damaged_checkpoint_is_passed_over_and_the_end_is_the_same(
    corpus: Path, pretrained: Path, tmp_path: Path
) -> None:
    run = _copy(pretrained, tmp_path)
    (run / "step-00000040" / "model.safetensors").write_bytes(b"cut")
    ended = processes.run(PRETRAIN, f"--corpus={corpus}", f"--output={run}", *small.PRETRAINING, said=tmp_path / "said")
    assert ended.code == 0, ended.err
    assert "step-00000040/model.safetensors: 3 bytes, expected " in ended.err
    assert f"resuming from {run / 'step-00000036'}\n" in ended.err
    assert small.read_metrics(run) == small.read_metrics(pretrained)
    assert weights(run) == weights(pretrained)


def test_a_finished_run_that_is_started_again_stays_as_it_is(
    corpus: Path, pretrained: Path, tmp_path: Path, pretraining: ModuleType
) -> None:
    run = _copy(pretrained, tmp_path)
    call(pretraining, f"--corpus={corpus}", f"--output={run}")
    assert (run / "metrics.jsonl").read_bytes() == (pretrained / "metrics.jsonl").read_bytes()
    assert weights(run) == weights(pretrained)


def test_its_config_file_makes_the_same_run_again(pretrained: Path, tmp_path: Path, pretraining: ModuleType) -> None:
    options = [f"--config={pretrained / 'config.yaml'}", f"--output={tmp_path / 'run'}"]
    pretraining.main(cli.parse(pretraining.PretrainConfig, options))
    assert small.read_metrics(tmp_path / "run") == small.read_metrics(pretrained)
    assert weights(tmp_path / "run") == weights(pretrained)


def test_what_is_free_to_change_in_a_resumed_run_changes_nothing_else(
    corpus: Path, pretrained: Path, tmp_path: Path, pretraining: ModuleType
) -> None:
    run = _copy(pretrained, tmp_path)
    shutil.rmtree(run / "step-00000040")
    moved = shutil.copytree(corpus, tmp_path / "moved")
    free = ["--training.workers=1", "--training.log_every=2", "--training.evaluate_every=99", "--training.keep=1"]
    call(pretraining, f"--corpus={moved}", f"--output={run}", *free, "--training.save_every=38")
    kept = [line for line in small.read_metrics(pretrained) if line["step"] not in (37, 39)]
    assert small.read_metrics(run) == kept
    assert weights(run) == weights(pretrained)
    assert [path.name for path in checkpoint.checkpoints(run)] == ["step-00000040"]


def test_a_run_can_go_on_in_another_folder_from_an_earlier_checkpoint(
    corpus: Path, pretrained: Path, tmp_path: Path, pretraining: ModuleType
) -> None:
    call(pretraining, f"--corpus={corpus}", f"--output={tmp_path}", f"--resume={pretrained / 'step-00000036'}")
    assert small.read_metrics(tmp_path) == small.read_metrics(pretrained)[-6:]
    assert weights(tmp_path) == weights(pretrained)


def test_no_finite_loss_ends_in_one_line_that_names_the_last_checkpoint_before(
    corpus: Path, tmp_path: Path, pretraining: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretraining, "learning_rate", lambda end, position, config: 1e-3 if position.step < 6 else 1e30)
    options = [f"--corpus={corpus}", f"--output={tmp_path / 'run'}", "--training.save_every=3"]
    with pytest.raises(UserError) as error:
        call(pretraining, *options)
    good = tmp_path / "run" / "step-00000006"
    said = f"no finite gradient in 10 updates in a row, up to update 17; the last good checkpoint is {good}"
    assert str(error.value) == said
    assert all(tensor.isfinite().all() for tensor in load_file(good / "model.safetensors").values())
    assert [path.name for path in checkpoint.checkpoints(tmp_path / "run")] == ["step-00000003", "step-00000006"]
    lines = [line for line in small.read_metrics(tmp_path / "run") if line["split"] == "train"]
    assert [line["step"] for line in lines if line["values"]["loss"] is None] == list(range(8, 18))


def test_a_checkpoint_of_an_older_version_is_refused_in_one_line(
    corpus: Path, pretrained: Path, tmp_path: Path, pretraining: ModuleType
) -> None:
    state = checkpoint.load_state(pretrained / "last")
    extra = {name: value for name, value in state.extra.items() if name != "place"}
    old = checkpoint.save(tmp_path / "old", dataclasses.replace(state, extra=extra), lambda folder: None, keep=1)
    with pytest.raises(UserError, match=r"step-00000040: its state lacks place; expected a checkpoint of this version"):
        call(pretraining, f"--corpus={corpus}", f"--output={tmp_path / 'run'}", f"--resume={old}")


def test_where_no_checkpoint_was_made_a_diverged_run_says_so(
    corpus: Path, tmp_path: Path, pretraining: ModuleType
) -> None:
    with pytest.raises(UserError, match="up to update 11; the last good checkpoint is not made yet"):
        call(pretraining, f"--corpus={corpus}", f"--output={tmp_path}", "--optimizer.learning_rate=1e30")
    assert not checkpoint.checkpoints(tmp_path)


def test_two_processes_that_diverge_both_end(corpus: Path, tmp_path: Path) -> None:
    options = [f"--corpus={corpus}", f"--output={tmp_path / 'run'}", *small.PRETRAINING]
    both = processes.start_all(PRETRAIN, *options, "--optimizer.learning_rate=1e30", said=tmp_path / "said", world=2)
    ended = [process.wait() for process in both]
    assert [process.code for process in ended] == [2, 2]
    assert ended[0].err.split("\n")[-2].startswith("error: no finite gradient in 10 updates in a row, up to update 11;")
    assert "error on process 1: no finite gradient in 10 updates in a row, up to update 11;" in ended[1].err


def test_a_run_whose_updates_were_all_left_out_can_be_resumed(
    corpus: Path, tmp_path: Path, pretraining: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the first updates of a run in fp16 are, until the gradients' scale is small enough."""
    clip = torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_, **__: torch.tensor(torch.nan))
    call(pretraining, f"--corpus={corpus}", f"--output={tmp_path}", "--training.steps=3")
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    assert checkpoint.load_state(tmp_path / "last").optimizer == {}
    (tmp_path / "last").unlink()
    call(pretraining, f"--corpus={corpus}", f"--output={tmp_path}", "--training.steps=3")


def test_a_warning_comes_where_most_tokens_are_to_be_predicted(
    corpus: Path, tmp_path: Path, pretraining: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    options = [f"--corpus={corpus}", f"--output={tmp_path}", "--training.steps=1", "--masking.probability=0.9"]
    with caplog.at_level(logging.WARNING, "minibert"):
        call(pretraining, *options)
    assert "% of the tokens are to be predicted; the loss will look too good" in caplog.text


def test_without_held_out_documents_nothing_is_evaluated(tmp_path: Path, pretraining: ModuleType) -> None:
    text = small.write_text(tmp_path / "text.txt", count=7)
    build_corpus(
        PrepareConfig(sources=[str(text)], output=str(tmp_path / "corpus"), vocab_size=97, validation_share=0.0)
    )
    call(pretraining, f"--corpus={tmp_path / 'corpus'}", f"--output={tmp_path / 'run'}", "--training.steps=2")
    assert [line["split"] for line in small.read_metrics(tmp_path / "run")] == ["train", "train"]


def test_perplexity_of_a_huge_loss_is_a_number_or_null(
    pretraining: ModuleType, monkeypatch: pytest.MonkeyPatch, corpus: Path, tmp_path: Path
) -> None:
    for loss in (1e4, float("inf"), float("nan")):
        monkeypatch.setattr(evaluation, "evaluate", lambda *_, loss=loss: {"mlm_loss": loss})
        run = tmp_path / str(loss)
        call(pretraining, f"--corpus={corpus}", f"--output={run}", "--training.steps=1")
        assert small.read_metrics(run)[-1]["values"]["mlm_loss"] == (loss if loss == 1e4 else None)


def test_the_configs_that_come_with_it_can_be_read(pretraining: ModuleType) -> None:
    paths = sorted((processes.ROOT / "configs" / "pretrain").glob("*.yaml"))
    configs = [cli.parse(pretraining.PretrainConfig, [f"--config={path}"]) for path in paths]
    assert configs
    assert all(config.pairs.max_length <= config.model.max_position_embeddings for config in configs)


def _stop(running: Running, run: Path, number: signal.Signals, steps: int) -> processes.Ended:
    processes.wait_until(_after_steps(run, steps), running)
    assert running.process.pid is not None
    os.kill(running.process.pid, number)
    return running.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_asked_to_stop_it_saves_its_step_and_exits_with_0_so_that_it_can_go_on(
    corpus: Path, pretrained: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    [running] = _started(corpus, run, 1)
    ended = _stop(running, run, number, steps=6)
    assert ended.code == 0, ended.err
    step = checkpoint.load_state(run / "last").step
    assert f"{number.name}: saved step {step} and ends; the same command goes on" in ended.err
    assert 6 <= step < 40
    [running] = _started(corpus, run, 1)
    assert running.wait().code == 0
    assert small.read_metrics(run) == small.read_metrics(pretrained)
    assert weights(run) == weights(pretrained)


def test_a_signal_to_one_of_two_processes_stops_both_at_the_same_step(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = [f"--corpus={corpus}", f"--output={run}", *small.PRETRAINING, "--training.steps=4000"]
    both = processes.start_all(PRETRAIN, *options, said=tmp_path / "said", world=2)
    ended = _stop(both[1], run, signal.SIGTERM, steps=5)
    assert [ended.code, both[0].wait().code] == [0, 0]
    assert f"saved step {checkpoint.load_state(run / 'last').step} and ends" in both[0].wait().err


def test_a_signal_to_the_whole_group_lets_the_workers_finish_the_step(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = [f"--corpus={corpus}", f"--output={run}", *small.PRETRAINING, "--training.steps=4000"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PRETRAIN), *options, "--training.workers=2"]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(command, stderr=said, env=environment, start_new_session=True)
        end, reached = time.monotonic() + 90, _after_steps(run, 5)
        while not reached():
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(60) == 0, (tmp_path / "said").read_text("utf-8")
    assert checkpoint.load_state(run / "last").step >= 5
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_a_budget_of_time_ends_the_run_and_its_schedule_and_outlives_a_stop(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--budget=5s", "--training.steps=1", "--training.log_every=1", "--training.save_every=100000"]
    [running] = _started(corpus, run, 1, *options)
    _stop(running, run, signal.SIGTERM, steps=3)
    used = checkpoint.load_state(run / "last").extra["seconds"]
    assert 0 < used < 5
    begin = time.monotonic()
    [running] = _started(corpus, run, 1, *options)
    assert running.wait().code == 0
    assert time.monotonic() - begin > 4.5 - used
    rates = [line["values"]["learning_rate"] for line in small.read_metrics(run) if line["split"] == "train"]
    assert max(rates) > 5e-4
    assert rates[-1] < max(rates) / 3
    assert 5 <= checkpoint.load_state(run / "last").extra["seconds"] < 15


@pytest.mark.parametrize(
    ("option", "name", "total"), [("--training.epochs=1.3", "epoch", 1.3), ("--training.tokens=5003", "tokens", 5003)]
)
def test_it_ends_with_the_update_that_reaches_its_epochs_or_tokens(
    corpus: Path, tmp_path: Path, pretraining: ModuleType, option: str, name: str, total: float
) -> None:
    call(pretraining, f"--corpus={corpus}", f"--output={tmp_path}", option)
    done = [line["values"][name] for line in small.read_metrics(tmp_path) if line["split"] == "train"]
    assert done[-2] < total <= done[-1]
    assert len(done) != small.TRAINING["steps"]


STAGED = [
    "--stages=[{until: 0.25, batch_size: 3, max_length: 24}, {until: 0.6, max_length: 24}]",
    "--masking.initial_probability=0.3",
    "--optimizer.kind=lamb",
    "--averaging.ema_decay=0.9",
    "--schedule.kind=wsd",
]


def test_stages_schedules_and_averages_are_resumed_like_everything_else(corpus: Path, tmp_path: Path) -> None:
    straight, run = tmp_path / "straight", tmp_path / "run"
    for folder, steps in ((straight, ()), (run, (7, 17, 31))):
        for stop in steps:
            [running] = _started(corpus, folder, 1, *STAGED)
            _stop(running, folder, signal.SIGTERM, steps=stop)
        [running] = _started(corpus, folder, 1, *STAGED)
        assert running.wait().code == 0
    assert small.read_metrics(run) == small.read_metrics(straight)
    assert weights(run) == weights(straight)
    assert (run / "ema" / "model.safetensors").read_bytes() == (straight / "ema" / "model.safetensors").read_bytes()
    shares = [line["values"]["masked_share"] for line in small.read_metrics(run) if line["split"] == "train"]
    assert shares[0] > 0.28
    assert shares[-1] < 0.17


def test_averages_are_models_of_their_own_and_are_evaluated(
    corpus: Path, tmp_path: Path, pretraining: ModuleType
) -> None:
    options = ["--averaging.ema_decay=0.8", "--averaging.last=3", "--training.keep=1"]
    call(pretraining, f"--corpus={corpus}", f"--output={tmp_path}", *options)
    saved = [load_file(path / "model.safetensors") for path in checkpoint.checkpoints(tmp_path)]
    assert len(saved) == 3
    mean, name = load_file(tmp_path / "mean" / "model.safetensors"), "bert.pooler.dense.weight"
    assert torch.allclose(mean[name], sum(weights[name] for weights in saved) / 3, atol=1e-7)
    ema = BertForPreTraining.from_pretrained(tmp_path / "ema")
    assert not torch.equal(ema.bert.pooler.dense.weight, saved[-1][name])
    values = {line["split"]: line["values"] for line in small.read_metrics(tmp_path)}
    assert values["mean"].keys() == values["ema"].keys() == values["validation"].keys()
    assert values["ema"]["mlm_loss"] == pytest.approx(values["validation"]["mlm_loss"], abs=0.5)
    assert not list(tmp_path.glob(".*"))
    before = (tmp_path / "ema" / "model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "ema")  # as if it had been killed behind its last checkpoint
    call(pretraining, f"--corpus={corpus}", f"--output={tmp_path}", *options)
    assert (tmp_path / "ema" / "model.safetensors").read_bytes() == before


def test_without_next_sentences_only_masked_words_are_learned_and_no_weight_is_left_out(
    corpus: Path, tmp_path: Path
) -> None:
    options = [f"--corpus={corpus}", f"--output={tmp_path / 'run'}", *small.PRETRAINING, "--pairs.objective=none"]
    both = processes.start_all(PRETRAIN, *options, "--training.steps=3", said=tmp_path / "said", world=2)
    assert [process.wait().code for process in both] == [0, 0]
    assert small.read_metrics(tmp_path / "run")[-1]["values"].keys() == {"mlm_loss", "mlm_accuracy", "perplexity"}
    assert BertForMaskedLM.from_pretrained(tmp_path / "run" / "last").fresh_weights == []


def test_a_changed_config_is_refused_field_by_field_unless_changes_are_allowed(
    corpus: Path, pretrained: Path, tmp_path: Path, pretraining: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    run = _copy(pretrained, tmp_path)
    options = [f"--corpus={corpus}", f"--output={run}", "--training.steps=41", "--optimizer.beta2=0.98"]
    with pytest.raises(UserError, match=r"optimizer.beta2 was 0.999, is 0.98; training.steps was 40, is 41$"):
        call(pretraining, *options)
    with caplog.at_level(logging.WARNING, "minibert"):
        call(pretraining, *options, "--allow_changes=true")
    assert "optimizer.beta2 was 0.999, is 0.98\n  training.steps was 40, is 41" in caplog.text
    assert checkpoint.load_state(run / "last").step == 41


def _after_steps(run: Path, steps: int, late: float = 0.0) -> Callable[[], bool]:
    """Whether so many steps are written down, and a moment more has passed."""

    def reached() -> bool:
        path = run / "metrics.jsonl"
        there = path.exists() and path.read_bytes().count(b'"train"') >= steps
        time.sleep(late if there else 0)
        return there

    return reached


def _while_saving(run: Path, late: float = 0.0) -> Callable[[], bool]:
    """Whether a checkpoint is half written, and not one that an earlier kill left."""
    seen: list[set[tuple[int, int]]] = []

    def reached() -> bool:
        seen.append(_half_written(run))
        there = not seen[-1] <= seen[0]
        time.sleep(late if there else 0)
        return there

    return reached


def _random_moments(run: Path, rng: random.Random, *, between: int, saving: int) -> list[Callable[[], bool]]:
    """So many moments after steps, in their order, and so many in the middle of saves, spread among them."""
    moments = [_after_steps(run, step, late=rng.random() * 0.05) for step in sorted(rng.sample(range(1, 40), between))]
    for place in sorted(rng.sample(range(between), saving), reverse=True):
        moments.insert(place, _while_saving(run, late=rng.random() * 0.03))
    return moments


def _half_written(run: Path) -> set[tuple[int, int]]:
    found = set()
    for path in run.glob(".step-*.partial"):
        with contextlib.suppress(FileNotFoundError):
            found.add((path.stat().st_ino, path.stat().st_ctime_ns))
    return found


def _kill_and_resume(corpus: Path, run: Path, moments: list[Callable[[], bool]], *options: str, at_least: int) -> None:
    """Start the same command again and again, kill it at each of these moments, and at last let it end."""
    killed = 0
    for running in _started(corpus, run, len(moments), *options):
        processes.wait_until(moments.pop(0), running)
        running.kill()
        killed += running.wait().code == -9
        for path in checkpoint.checkpoints(run):
            checkpoint.verify(path)
        if (run / "last").is_symlink():
            checkpoint.verify(run / "last")
    [running] = _started(corpus, run, 1, *options)
    ended = running.wait()
    assert ended.code == 0, ended.err
    assert killed >= at_least, "it ended before it was killed"
    assert not list(run.glob(".*"))


def _started(corpus: Path, run: Path, times: int, *options: str) -> Iterator[Running]:
    command = [f"--corpus={corpus}", f"--output={run}", *small.PRETRAINING, *options]
    for number in range(times):
        yield processes.start(PRETRAIN, *command, said=run.with_name(f"said-{number}"))


def _copy(pretrained: Path, folder: Path) -> Path:
    return Path(shutil.copytree(pretrained, folder / "run", symlinks=True))
