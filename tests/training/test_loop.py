"""The loop by itself: sums with counts, one clipping, no poisoned step; and the real script on two processes."""

import json
import math
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
import small
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from minibert import BertConfig, BertForPreTraining
from minibert.data.batches import Cursor, PretrainingBatches, Request
from minibert.data.corpus import Corpus
from minibert.data.pairs import PairSettings
from minibert.data.tokenizer import load_tokenizer, vocabulary
from minibert.objectives import Measure, accuracy, cross_entropy
from minibert.training.guard import Guard, GuardSettings
from minibert.training.loop import Batch, DivergedError, Update, evaluate, train
from minibert.training.optim import OptimizerSettings, make_optimizer

pytestmark = pytest.mark.usefixtures("one_process")


@dataclass(frozen=True)
class Answer:
    losses: Mapping[str, Measure]


class Scale(nn.Module):
    """Its loss is Σ weight · value over the positions whose label is not -100, so its gradient is the mean value."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, values: Tensor, labels: Tensor, attention_mask: Tensor) -> Answer:
        counted = labels != -100
        return Answer({"loss": Measure((self.weight * values * counted).sum(), counted.sum())})


class Dots(nn.Module):
    """Its loss is weight · values: each gradient is what the batch says."""

    def __init__(self, *weights: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weights))

    def forward(self, values: Tensor, labels: Tensor, attention_mask: Tensor) -> Answer:
        return Answer({"loss": Measure((self.weight * values).sum(), torch.tensor(1))})


def part(values: list[float], labels: list[int] | None = None) -> Batch:
    """A micro-batch of one row."""
    given = torch.tensor([labels or [0] * len(values)])
    return {"values": torch.tensor([values]), "labels": given, "attention_mask": torch.ones_like(given)}


def run(model: nn.Module, updates: list[list[Batch]], rate: float = 0.0, **settings: Any) -> list[Update]:
    """Train with plain gradient descent."""
    accelerator = Accelerator(cpu=True)
    wrapped, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    return list(start(wrapped, optimizer, accelerator, updates, rate, **settings))


def start(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    accelerator: Accelerator,
    updates: list[list[Batch]],
    rate: float = 0.0,
    **settings: Any,
) -> Iterator[Update]:
    return train(
        model,
        optimizer,
        accelerator,
        updates=enumerate(updates),
        **{"learning_rate": lambda done: rate, "targets": {"loss": "labels"}, "clip": 1e9, "seed": 3, **settings},
    )


def test_one_target_with_loss_10_and_nine_with_loss_2_make_2_point_8() -> None:
    model = Scale()
    [update] = run(model, [[part([10.0] + [7.0] * 2, [0, -100, -100]), part([2.0] * 9)]])
    assert float(update.losses["loss"]) == pytest.approx(2.8, abs=1e-6)
    assert float(update.gradient_norm) == pytest.approx(2.8, abs=1e-6)
    assert (int(update.targets["loss"]), int(update.tokens)) == (10, 12)
    assert (update.step, update.learning_rate, update.applied) == (1, 0.0, True)


def test_an_incomplete_last_update_is_divided_by_its_own_targets() -> None:
    rows = [part([float(value)]) for value in range(1, 11)]
    updates = run(Scale(), [rows[:4], rows[4:8], rows[8:]])
    assert [float(update.losses["loss"]) for update in updates] == [2.5, 6.5, 9.5]
    assert [float(update.gradient_norm) for update in updates] == [2.5, 6.5, 9.5]
    assert [update.step for update in updates] == [1, 2, 3]


def test_the_gradient_is_clipped_once_and_its_norm_before_that_is_told() -> None:
    model = Dots(0.0, 0.0)
    [update] = run(model, [[part([1.0, 2.0]), part([2.0, 2.0])]], rate=0.5, clip=2.0, targets={"loss": "labels"})
    # Four targets: the gradient of the mean is (3, 4) / 4, whose norm is 1.25, less than 2: nothing is clipped.
    assert float(update.gradient_norm) == pytest.approx(1.25)
    assert model.weight.tolist() == pytest.approx([-0.5 * 0.75, -0.5 * 1.0])

    model = Dots(0.0, 0.0)
    [update] = run(model, [[part([12.0, 4.0]), part([12.0, 28.0])]], rate=0.5, clip=2.0)
    # (24, 32) / 4 = (6, 8), of norm 10, is cut to 2 / 10 of it; clipping each part would give another direction.
    assert float(update.gradient_norm) == pytest.approx(10.0)
    assert model.weight.tolist() == pytest.approx([-0.5 * 1.2, -0.5 * 1.6], rel=1e-5)


def test_an_update_without_finite_gradient_is_left_out_and_counted() -> None:
    model, weights = Dots(1.0, 2.0), []
    batches = [[part([1.0, 1.0])], [part([math.nan, 1.0])], [part([1.0, math.inf])], [part([1.0, 1.0])]]
    updates = []
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.1)
    wrapped, prepared = accelerator.prepare(model, optimizer)
    for update in start(wrapped, prepared, accelerator, batches, rate=0.125):
        updates.append(update)
        weights.append(model.weight.tolist())
    assert [update.applied for update in updates] == [True, False, False, True]
    assert weights[0] == weights[1] == weights[2] != weights[3]
    assert int(optimizer.state[model.weight]["step"]) == 2
    assert all(math.isfinite(value) for value in weights[3])
    assert math.isnan(float(updates[1].losses["loss"]))


def test_too_many_bad_updates_in_a_row_end_the_training() -> None:
    bad, good = [part([math.nan, 1.0])], [part([1.0, 1.0])]
    updates = run(Dots(1.0, 1.0), [bad, bad, good, bad, bad, good], guard=_patient(3))
    assert [update.skipped for update in updates] == [1, 2, 2, 3, 4, 4]
    accelerator = Accelerator(cpu=True)
    model = Dots(1.0, 1.0)
    wrapped, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    updates = start(wrapped, optimizer, accelerator, [good, good, bad, bad, bad, good], guard=_patient(3))
    assert [next(updates).step for _ in range(5)] == [1, 2, 3, 4, 5]
    with pytest.raises(DivergedError, match="no finite gradient in 3 updates in a row, up to update 5"):
        next(updates)


def test_a_spike_changes_neither_weights_nor_moments() -> None:
    """The rate is so small that losses differ by their values alone, which are 30 times as large in one update."""
    values = [[3.0, 1.0], [3.0, 1.5], [90.0, 30.0], [2.0, 1.0]]
    with_spike, without = _moments_after(values), _moments_after(values[:2] + values[3:])
    assert with_spike[2] == with_spike[1] != with_spike[3]
    assert with_spike[3] == without[2]


def test_a_run_that_stays_bad_ends_and_says_against_what() -> None:
    updates = [[part([1.0, 1.0])]] * 3 + [[part([5.0, 5.0])]] * 9
    said = "a loss more than 2 times its running mean of 0.5 in 4 updates in a row, up to update 7"
    with pytest.raises(DivergedError, match=said):
        run(Dots(0.5, 0.5), updates, guard=Guard(GuardSettings(spike=2.0, patience=4)))


def test_a_spike_under_a_gradient_scaler_is_left_out_and_the_scaler_goes_on() -> None:
    """Its scale falls after a gradient that is not finite, and after no other."""
    model, accelerator = Dots(1.0, 1.0), Accelerator(cpu=True)
    accelerator.scaler = scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    accelerator.unscale_gradients = lambda: scaler.unscale_(plain)  # which it would do for fp16 alone, on a GPU
    wrapped, optimizer = accelerator.prepare(model, plain)
    updates = [[part(values)] for values in ([1.0, 1.0], [90.0, 1.0], [math.inf, 1.0], [1.0, 1.0])]
    guard, weights, scales = Guard(GuardSettings(spike=2.0)), [], []
    for update in start(wrapped, optimizer, accelerator, updates, rate=0.125, guard=guard):
        weights.append(model.weight.tolist())
        scales.append(scaler.get_scale())
        assert update.applied == (update.step in (1, 4))
    assert weights == [[0.9375, 0.9375]] * 3 + [[0.875, 0.875]]
    assert scales == [1024.0, 1024.0, 512.0, 512.0]


def test_two_processes_leave_the_same_updates_out(tmp_path: Path) -> None:
    """One of them alone has seen what is bad."""
    ended = processes.call_all(_train_with_spikes, str(tmp_path), said=tmp_path / "said", world=2)
    assert [process.code for process in ended] == [0, 0], ended
    values = [json.loads((tmp_path / f"{rank}.json").read_text("utf-8")) for rank in range(2)]
    assert values[0] == values[1]
    assert values[0]["applied"] == [True, True, False, True, False, True]


def test_micro_batches_over_shares_of_a_model_add_up_to_the_gradient_of_whole_ones(tmp_path: Path) -> None:
    ended = processes.call_all(_train_sharded, str(tmp_path), said=tmp_path / "said", world=2)
    assert [process.code for process in ended] == [0, 0], ended
    model = Dots(1.0, 2.0, 3.0)
    [update] = run(model, [[part([float(row), 1.0, 2.0]) for row in range(4)]], rate=0.5)
    norm, weight = json.loads((tmp_path / "0.json").read_text("utf-8"))
    assert norm == pytest.approx(float(update.gradient_norm))
    assert weight == pytest.approx(model.weight.tolist())


def test_eight_rows_at_once_and_one_by_one_give_the_same_gradients_of_both_losses(corpus: Path) -> None:
    whole, rows = _gradients(corpus, size=8), _gradients(corpus, size=1)
    means = _gradient_of_means(corpus)
    for name, gradient in whole.items():
        assert (gradient - rows[name]).abs().max() < 1e-6, name
        assert (gradient - means[name]).abs().max() < 1e-6, name  # the losses as torch takes their means
    assert whole.keys() == rows.keys() == means.keys()


def test_dropout_depends_on_seed_update_and_process_alone() -> None:
    told = _dropped(seed=3)
    assert len({tuple(mask) for mask in told}) == 3  # another in each update
    assert _dropped(seed=3) == told
    assert _dropped(seed=3, disturb=True) == told
    assert _dropped(seed=3, begin=1) == told[1:]  # as when resumed
    others = _dropped(seed=4) + _dropped(seed=3, rank=1)
    assert len({tuple(mask) for mask in told + others}) == 9


def test_the_loop_sets_the_rate_before_each_update() -> None:
    model, rates = Dots(0.0), [0.5, 0.25, 0.0]
    updates = run(model, [[part([1.0])]] * 3, learning_rate=lambda done: rates[done])
    assert [update.learning_rate for update in updates] == rates
    assert model.weight.tolist() == [-0.75]


def test_evaluation_keeps_sums_only() -> None:
    alive: list[weakref.ref[Tensor]] = []

    def batches() -> Iterator[Batch]:
        for number in range(101):
            assert sum(reference() is not None for reference in alive) <= 1, "logits of earlier batches are kept"
            yield {"values": torch.full((3, 5), float(number)), "labels": torch.tensor([0, 4, -100])}

    class Logits(nn.Module):
        def forward(self, values: Tensor, labels: Tensor) -> Tensor:
            alive.append(weakref.ref(values := values * 1))
            return values

    def measures(logits: Tensor, batch: Batch) -> dict[str, Measure]:
        return {"loss": cross_entropy(logits, batch["labels"]), "accuracy": accuracy(logits, batch["labels"])}

    values = evaluate(Logits(), batches(), Accelerator(cpu=True), measures)
    assert values == {"loss": pytest.approx(math.log(5)), "accuracy": 0.5}
    assert len(alive) == 101


def test_evaluation_means_are_taken_over_all_targets_and_nothing_is_said_of_none() -> None:
    def measures(output: Any, batch: Batch) -> dict[str, Measure]:
        return {**output.losses, "absent": Measure(torch.tensor(0.0), torch.tensor(0))}

    accelerator = Accelerator(cpu=True)
    uneven = [part([10.0]), part([2.0] * 9)]
    assert evaluate(Scale(), uneven, accelerator, measures) == {"loss": pytest.approx(2.8)}
    assert evaluate(Scale(), [], accelerator, measures) == {}


def test_evaluation_leaves_dropout_out() -> None:
    model = nn.Dropout(0.5)
    model.forward = lambda values, **rest: nn.functional.dropout(values, 0.5, model.training)
    batch = part([1.0] * 97)
    [share] = evaluate(
        model, [batch], Accelerator(cpu=True), lambda output, _: {"sum": Measure(output.sum(), torch.tensor(97))}
    ).values()
    assert share == 1.0


def test_one_process_may_have_fewer_evaluation_batches_than_another(tmp_path: Path) -> None:
    ended = processes.call_all(_evaluate_unevenly, str(tmp_path), said=tmp_path / "said", world=2)
    assert [process.code for process in ended] == [0, 0], ended
    values = [json.loads((tmp_path / f"{rank}.json").read_text("utf-8")) for rank in range(2)]
    assert values[0] == values[1] == {"loss": pytest.approx(np.mean(range(9)))}


def test_two_processes_compute_the_same_run_as_one(corpus: Path, tmp_path: Path) -> None:
    options = [f"--corpus={corpus}", *small.PRETRAINING, "--model.hidden_dropout_prob=0", "--training.steps=6"]
    options += ["--model.attention_probs_dropout_prob=0", "--training.batch_size=9", "--schedule.warmup=0.4"]
    options += ["--optimizer.epsilon=1e-4"]  # gradients that are zero but for rounding, as of key biases, stay zero
    alone = processes.start(processes.PRETRAIN, *options, f"--output={tmp_path / 'one'}", said=tmp_path / "alone")
    both = processes.start_all(
        processes.PRETRAIN, *options, f"--output={tmp_path / 'two'}", said=tmp_path / "both", world=2
    )
    assert [ended.code for ended in (process.wait() for process in [alone, *both])] == [0, 0, 0]
    one, two = (small.read_metrics(tmp_path / run) for run in ("one", "two"))
    assert [(line["step"], line["split"]) for line in one] == [(line["step"], line["split"]) for line in two]
    for line, other in zip(one, two, strict=True):
        assert other["values"] == pytest.approx(line["values"], rel=1e-5, abs=1e-5), line["step"]
    rates = [line["values"]["learning_rate"] for line in two if line["split"] == "train"]
    assert rates == pytest.approx([5e-4, 1e-3, 1e-3, 7.5e-4, 5e-4, 2.5e-4])
    weights, others = (load_file(tmp_path / run / "last" / "model.safetensors") for run in ("one", "two"))
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        assert (weight - others[name]).abs().max() < 1e-5, name


@pytest.mark.slow
def test_torchrun_starts_two_processes_that_compute_the_same_run_as_one(corpus: Path, tmp_path: Path) -> None:
    options = [f"--corpus={corpus}", *small.PRETRAINING, "--model.hidden_dropout_prob=0", "--training.steps=20"]
    options += ["--model.attention_probs_dropout_prob=0"]
    alone = processes.run(processes.PRETRAIN, *options, f"--output={tmp_path / 'one'}", said=tmp_path / "alone")
    assert alone.code == 0, alone.err
    launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    subprocess.run(
        [*launched, str(processes.PRETRAIN), *options, f"--output={tmp_path / 'two'}"],
        env={**os.environ, "ACCELERATE_USE_CPU": "true"},
        check=True,
        timeout=300,
    )
    one, two = (small.read_metrics(tmp_path / run) for run in ("one", "two"))
    for line, other in zip(one, two, strict=True):
        assert other["values"] == pytest.approx(line["values"], rel=1e-5, abs=1e-5), line["step"]


def _patient(patience: int) -> Guard:
    return Guard(GuardSettings(spike=None, patience=patience))


def _moments_after(values: list[list[float]]) -> list[list[list[float]]]:
    """The weights and moments after each update."""
    model, accelerator, found = Dots(1.0, 2.0), Accelerator(cpu=True), []
    wrapped, optimizer = accelerator.prepare(model, make_optimizer(model, OptimizerSettings()))
    updates = [[part(row)] for row in values]
    for _ in start(wrapped, optimizer, accelerator, updates, rate=1e-3, guard=Guard(GuardSettings(spike=2.0))):
        moments = optimizer.optimizer.state[model.weight]
        tensors = [model.weight, moments["step"].view(1), moments["exp_avg"], moments["exp_avg_sq"]]
        found.append([tensor.tolist() for tensor in tensors])
    return found


def _train_with_spikes(folder: str) -> None:
    accelerator, model = Accelerator(cpu=True), Dots(1.0, 1.0)
    rank = accelerator.process_index
    wrapped, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    bad = {2: 50.0, 4: math.nan} if rank == 1 else {}
    updates = [[part([bad.get(number, 1.0), 1.0 + rank])] for number in range(6)]
    guard = Guard(GuardSettings(spike=2.0))
    applied = [update.applied for update in start(wrapped, optimizer, accelerator, updates, rate=1e-3, guard=guard)]
    found = {"applied": applied, "weight": model.weight.tolist(), "guard": guard.state()}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")


def _train_sharded(folder: str) -> None:
    accelerator, model = Accelerator(cpu=True), Dots(1.0, 2.0, 3.0)
    rank = accelerator.process_index
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=1.0))
    parts = [part([float(row), 1.0, 2.0]) for row in (2 * rank, 2 * rank + 1)]
    [update] = start(model, optimizer, accelerator, [parts], rate=0.5)
    found = [float(update.gradient_norm), model.weight.full_tensor().tolist()]
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")


_REQUEST = Request(step=0, cursor=Cursor(), rows=8, max_length=40, probability=0.15)


def _batches(corpus: Path) -> PretrainingBatches:
    words = vocabulary(load_tokenizer(corpus))
    return PretrainingBatches(Corpus.open(corpus, "train"), words, seed=5, pairs=PairSettings(max_length=40))


def _model() -> BertForPreTraining:
    torch.manual_seed(11)
    shape = BertConfig(
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
    return BertForPreTraining(shape)


def _gradients(corpus: Path, size: int) -> dict[str, Tensor]:
    """The gradients that the optimizer is given, with micro-batches of `size` rows."""
    model, accelerator, found = _model(), Accelerator(cpu=True), dict[str, Tensor]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.register_step_pre_hook(
        lambda *_: found.update({name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None})
    )
    wrapped, prepared = accelerator.prepare(model, optimizer)
    parts = _batches(corpus).micro_batches(_REQUEST, size=size)
    assert len(parts) == 8 // size
    [update] = start(wrapped, prepared, accelerator, [parts], targets=model.targets)
    assert update.losses.keys() == {"mlm", "nsp"}
    return found


def _gradient_of_means(corpus: Path) -> dict[str, Tensor]:
    """The gradients of the two mean losses, each taken by torch over the global batch."""
    model, batch = _model(), _batches(corpus)[_REQUEST]
    output = model(**{name: tensor for name, tensor in batch.items() if "label" not in name})
    mlm = nn.functional.cross_entropy(output.prediction_logits.flatten(0, 1), batch["labels"].flatten())
    nsp = nn.functional.cross_entropy(
        output.seq_relationship_logits.flatten(0, 1), batch["next_sentence_label"].flatten()
    )
    (mlm + nsp).backward()
    return {name: w.grad for name, w in model.named_parameters() if w.grad is not None}


def _dropped(*, seed: int, begin: int = 0, rank: int = 0, disturb: bool = False) -> list[list[float]]:
    """What dropout leaves of 31 ones in the updates from `begin` to 2, the second of two micro-batches."""
    seen: list[list[float]] = []

    class Dropout(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, values: Tensor, labels: Tensor, attention_mask: Tensor) -> Answer:
            left = nn.functional.dropout(values, 0.5, self.training)
            seen.append(left[0].tolist())
            return Answer({"loss": Measure((self.weight * left).sum(), torch.tensor(31))})

    model, accelerator = Dropout(), Accelerator(cpu=True)
    wrapped, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    ones = part([1.0] * 31)
    updates = train(
        wrapped,
        optimizer,
        Elsewhere(accelerator, rank),
        updates=((done, [ones, ones]) for done in range(begin, 3)),
        learning_rate=lambda done: 0.0,
        targets={"loss": "labels"},
        clip=1.0,
        seed=seed,
    )
    for _ in updates:
        if disturb:
            torch.rand(7)
            model.eval()
    assert len({tuple(mask) for mask in seen}) == len(seen)
    return seen[1::2]


class Elsewhere:
    """An accelerator that takes itself for another process."""

    def __init__(self, accelerator: Accelerator, rank: int) -> None:
        self._accelerator, self.process_index = accelerator, rank

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)


def _evaluate_unevenly(folder: str) -> None:
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    rank = accelerator.process_index
    model = accelerator.prepare(Scale())
    batches = [part([float(value)]) for value in (range(5) if rank == 0 else range(5, 9))]
    values = evaluate(model, batches, accelerator, lambda output, batch: output.losses)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(values), encoding="utf-8")
