"""One process, two with a whole model each, two with one model cut up: the same run, and each goes on for any other."""

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from minibert import BertConfig, BertForPreTraining, UserError, cli
from minibert.training import checkpoint, launch
from minibert.training.checkpoint import TrainingState
from minibert.training.loop import Batch, train
from minibert.training.optim import OptimizerSettings, make_optimizer
from minibert.training.optimizer_state import load_named_state, named_state
from minibert.training.sharding import whole_state
from minibert.training.trackers import TrackingSettings

UPDATES, ROWS = 50, 10
PROCESSES = {"one": 1, "whole": 2, "cut": 2}
SHAPE = BertConfig(
    vocab_size=131,
    hidden_size=26,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=37,
    max_position_embeddings=41,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.2,
)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on one process, without accumulation."""
    folder = tmp_path_factory.mktemp("straight")
    run(folder, "one", size=ROWS)
    return folder


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that changes its layout at every stop, with accumulation of uneven parts."""
    folder = tmp_path_factory.mktemp("relay")
    for layout, stop in {"cut": 17, "one": 31, "whole": 43}.items():
        run(folder, layout, size=3, until=stop)
    run(folder, "cut", size=ROWS)
    return folder


def test_the_run_learns_and_its_rate_changes(straight: Path) -> None:
    lines = told(straight)
    assert [line["step"] for line in lines] == list(range(1, UPDATES + 1))
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.3
    assert len({line["rate"] for line in lines}) == UPDATES


@pytest.mark.parametrize("layout", ["whole", "cut"])
def test_two_processes_that_accumulate_are_the_same_run_as_one_that_does_not(
    straight: Path, tmp_path: Path, layout: str
) -> None:
    run(tmp_path, layout, size=3)
    assert_same(tmp_path, straight)


def test_a_run_that_changes_its_layout_at_every_stop_is_the_straight_run(straight: Path, relay: Path) -> None:
    assert_same(relay, straight)


@pytest.mark.slow
@pytest.mark.parametrize("size", [ROWS, 1])
@pytest.mark.parametrize(("first", "second"), list(itertools.product(PROCESSES, repeat=2)))
def test_each_layout_resumes_what_each_has_saved(
    straight: Path, tmp_path: Path, first: str, second: str, size: int
) -> None:
    run(tmp_path, first, size=size, until=23)
    run(tmp_path, second, size=size)
    assert_same(tmp_path, straight)


def test_what_a_cut_up_model_saves_is_a_plain_checkpoint(relay: Path) -> None:
    import transformers

    facts = json.loads((relay / "facts-17.json").read_text("utf-8"))
    assert facts == {"cut": True, "tied": True, "moments": ["exp_avg", "exp_avg_sq"], "counts": ["step"]}
    path = relay / "step-00000017"
    model, report = transformers.BertForPreTraining.from_pretrained(path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    config = json.loads((path / "config.json").read_text("utf-8"))
    assert config["architectures"] == ["BertForPreTraining"]


@pytest.mark.parametrize(("layout", "error", "code"), [("whole", "UserError", 2), ("cut", "RuntimeError", 1)])
def test_where_one_process_fails_all_end(tmp_path: Path, layout: str, error: str, code: int) -> None:
    healthy, failed = processes.call_all(_fail, layout, error, said=tmp_path / "said", world=2)
    assert failed.code == code, failed.err
    assert healthy.code > 0, healthy
    told = {"UserError": "error on process 1: row 7 is not whole\n", "RuntimeError": "RuntimeError: row 7 is not whole"}
    assert told[error] in failed.err


def run(folder: Path, layout: str, *, size: int, until: int = UPDATES) -> None:
    """Train on from the last checkpoint in `folder`, and save another after update `until`."""
    said = folder / f"said-{until}"
    ended = processes.call_all(_train, layout, str(folder), size, until, said=said, world=PROCESSES[layout])
    assert all(process.code == 0 for process in ended), ended


def told(folder: Path) -> list[dict[str, float]]:
    """What was said of each update."""
    parts = sorted(folder.glob("lines-*.json"))
    return [line for part in parts for line in json.loads(part.read_text("utf-8"))]


def assert_same(folder: Path, other: Path) -> None:
    """The same losses, norms and rates at each update, and in the end the same weights."""
    lines, others = told(folder), told(other)
    assert [line["step"] for line in lines] == [line["step"] for line in others]
    for line, expected in zip(lines, others, strict=True):
        assert line == pytest.approx(expected, rel=1e-5), line["step"]
    weights, expected = (load_file(run / "last" / "model.safetensors") for run in (folder, other))
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        assert (weight - expected[name]).abs().max() < 2e-5, name


def _accelerator(layout: str) -> Accelerator:
    """One that cuts models up in the layout "cut", by the code that it has for GPUs, though it takes it there alone."""
    accelerator = launch.start("no", TrackingSettings(), Path())
    assert accelerator.num_processes == PROCESSES[layout]
    if layout == "cut":
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="TRANSFORMER_BASED_WRAP",
            transformer_cls_names_to_wrap=["EncoderLayer"],
            cpu_ram_efficient_loading=False,
        )
        accelerator.state.distributed_type = DistributedType.FSDP
    return accelerator


def _train(layout: str, folder: str, size: int, until: int) -> None:
    accelerator = _accelerator(layout)
    _go_on(Path(folder), accelerator, size=size, until=until)
    accelerator.free_memory()  # a model that outlives the processes' connection sometimes waits for it without end
    accelerator.end_training()


def _go_on(run: Path, accelerator: Accelerator, *, size: int, until: int) -> None:
    source = checkpoint.newest(run)
    torch.manual_seed(11)
    model = BertForPreTraining(SHAPE) if source is None else BertForPreTraining.from_pretrained(source)
    # gradients that are zero but for rounding, as of key biases, stay zero
    optimizer = make_optimizer(model, OptimizerSettings(epsilon=1e-4))
    wrapped, prepared = accelerator.prepare(model, optimizer)
    state = TrainingState(0, {}, {}) if source is None else checkpoint.load_state(source)
    load_named_state(optimizer, model, state.optimizer)
    lines = [
        {
            "step": update.step,
            "loss": float(sum(update.losses.values())),
            "norm": float(update.gradient_norm),
            "rate": update.learning_rate,
        }
        for update in train(
            wrapped,
            prepared,
            accelerator,
            updates=((step, _share(step, size, accelerator)) for step in range(state.step, until)),
            learning_rate=lambda done: 3e-3 * math.cos(done / UPDATES),
            targets=model.targets,
            clip=2.0,
            seed=5,
        )
    ]
    weights, moments = whole_state(model), named_state(optimizer, model)
    if accelerator.is_main_process:
        write = _writer(model, weights)
        checkpoint.save(run, TrainingState(until, moments, {}), write, keep=9)
        (run / f"lines-{until}.json").write_text(json.dumps(lines), encoding="utf-8")
        (run / f"facts-{until}.json").write_text(json.dumps(_facts(model, optimizer)), encoding="utf-8")


def _writer(model: BertForPreTraining, weights: dict[str, Tensor]) -> Callable[[Path], None]:
    return lambda directory: model.save_pretrained(directory, weights=weights)


def _facts(model: BertForPreTraining, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What is cut up, and what is not."""
    table = model.bert.embeddings.tokens.weight
    moments = optimizer.state[table]
    return {
        "cut": isinstance(table, DTensor),
        "tied": table is model.mlm.decoder.weight,
        "moments": sorted(name for name, tensor in moments.items() if isinstance(tensor, DTensor)),
        "counts": sorted(name for name, tensor in moments.items() if not isinstance(tensor, DTensor)),
    }


def _share(step: int, size: int, accelerator: Accelerator) -> list[Batch]:
    """This process's micro-batches of a global batch whose rows have very different numbers of targets."""
    rng = np.random.default_rng(step)
    ids = torch.from_numpy(rng.integers(5, SHAPE.vocab_size, (ROWS, 13)))
    hidden = torch.from_numpy(rng.random((ROWS, 13)) < rng.random((ROWS, 1)) * 0.6)
    batch = {
        "input_ids": ids // 2 * 2,
        "attention_mask": torch.ones_like(ids),
        "labels": torch.where(hidden, ids // 2 * 2, -100),
        "next_sentence_label": ids[:, 0] % 2,
    }
    mine = np.array_split(np.arange(ROWS), accelerator.num_processes)[accelerator.process_index]
    return [{key: rows[mine[at : at + size]] for key, rows in batch.items()} for at in range(0, len(mine), size)]


def _fail(layout: str, error: str) -> None:
    """Train until process 1 meets a bad row, as a script would: through `cli.run`."""

    def main(config: object) -> None:
        accelerator = _accelerator(layout)
        model = BertForPreTraining(SHAPE)
        wrapped, prepared = accelerator.prepare(model, make_optimizer(model, OptimizerSettings()))
        updates = train(
            wrapped,
            prepared,
            accelerator,
            updates=((step, _rows(step, error, accelerator)) for step in range(UPDATES)),
            learning_rate=lambda done: 1e-3,
            targets=model.targets,
            clip=1.0,
            seed=5,
        )
        for _ in updates:
            pass

    cli.run(main, BertConfig, [])


def _rows(step: int, error: str, accelerator: Accelerator) -> list[Batch]:
    if step == 7 and accelerator.process_index == 1:
        raise {"UserError": UserError, "RuntimeError": RuntimeError}[error]("row 7 is not whole")
    return _share(step, 3, accelerator)
