"""The training loop: forward, backward, clip, step. It knows batches and losses, and nothing of BERT.

    for update in train(...):      one optimizer step at a time
        log, evaluate, save        is what the script does between them

A global batch is the micro-batches of all processes together. Each loss is divided by its number of targets in the
whole global batch, so cutting it up in another way changes nothing but rounding.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from minibert.objectives import IGNORED, Measure
from minibert.training.guard import Guard, GuardSettings
from minibert.training.optim import set_learning_rate
from minibert.training.sharding import whole

Batch = Mapping[str, Tensor]


class Output(Protocol):
    """What the loop needs of a model's answer."""

    @property
    def losses(self) -> Mapping[str, Measure]:
        """Each loss of this micro-batch as a sum with its count."""


@dataclass(frozen=True)
class Update:
    """One optimizer step, numbered from 1. Tensors, so that reading them is the reader's choice of when to wait."""

    step: int
    losses: dict[str, Tensor]
    """Means over the global batch, by name."""
    targets: dict[str, Tensor]
    """How many targets each mean is taken over."""
    tokens: Tensor
    """Real tokens (no padding) in the global batch."""
    gradient_norm: Tensor
    """Before clipping, of the mean loss."""
    learning_rate: float
    applied: bool
    """False where the guard left the step out: nothing was changed."""
    skipped: int
    """Steps left out so far, this one included."""


class DivergedError(RuntimeError):
    """Several updates in a row were not fit to be applied."""


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    accelerator: Accelerator,
    *,
    updates: Iterable[tuple[int, list[Batch]]],
    learning_rate: Callable[[int], float],
    targets: Mapping[str, str],
    clip: float,
    seed: int,
    guard: Guard | None = None,
) -> Iterator[Update]:
    """Train on each item of `updates`: the number of updates before it, and this process's micro-batches.

    Args:
        model, optimizer: as `accelerator.prepare` returned them; the model's answers have `losses`.
        learning_rate: the rate at an update, as a function of the number of updates before it.
        targets: for each loss the batch key of its labels; those that are not -100 are counted.
        clip: largest norm of the gradient, applied once for an update.
        seed: dropout is a function of (seed, update, process), so a resumed run repeats it.
        guard: leaves updates out; `DivergedError` is raised when it has had enough. None = one that minds only losses
            and gradients that are not finite.
    """
    guard = guard or Guard(GuardSettings(spike=None))
    for done, parts in updates:
        model.train()
        torch.manual_seed(_dropout_seed(seed, done, accelerator.process_index))
        rate = learning_rate(done)
        set_learning_rate(optimizer, rate)
        batches = [_to(part, accelerator.device) for part in parts]
        counts, tokens = _global_counts(batches, targets, accelerator)
        losses = _accumulate(model, batches, counts, accelerator)
        norm = whole(accelerator.clip_grad_norm_(model.parameters(), clip))
        *means, length = torch.stack([*losses.values(), norm]).tolist()
        applied = guard.admits(sum(means), length)
        if applied:
            optimizer.step()
        elif accelerator.scaler is not None:
            accelerator.scaler.update()  # as a step does: it adapts, and is ready for the next gradients
        optimizer.zero_grad()
        yield Update(done + 1, losses, counts, tokens, norm, rate, applied, guard.skipped)
        if guard.verdict:
            raise DivergedError(f"{guard.verdict}, up to update {done + 1}")


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    accelerator: Accelerator,
    measures: Callable[[Any, Batch], Mapping[str, Measure]],
) -> dict[str, float]:
    """The means of `measures(output, batch)` over the batches of all processes; one may have fewer than another.

    Only sums are kept. A measure of which nothing was counted is left out.
    """
    model.eval()
    totals: dict[str, list[float]] = {}
    for batch in batches:
        batch = _to(batch, accelerator.device)
        for name, measure in measures(model(**batch), batch).items():
            total, count = totals.setdefault(name, [0.0, 0.0])
            totals[name] = [total + float(measure.total), count + float(measure.count)]
    merged: dict[str, list[float]] = {}
    for part in gather_object([totals]):
        for name, (total, count) in part.items():
            before = merged.setdefault(name, [0.0, 0.0])
            merged[name] = [before[0] + total, before[1] + count]
    return {name: total / count for name, (total, count) in merged.items() if count}


def _accumulate(
    model: nn.Module, batches: list[Batch], counts: Mapping[str, Tensor], accelerator: Accelerator
) -> dict[str, Tensor]:
    """Add up the gradients of this process's micro-batches; returns the mean losses over the global batch."""
    sums = {name: torch.zeros((), device=accelerator.device) for name in counts}
    for number, batch in enumerate(batches, start=1):
        last = number == len(batches)
        with nullcontext() if last else accelerator.no_sync(model):
            output: Output = model(**batch)
            means = [measure.total / counts[name].clamp(min=1) for name, measure in output.losses.items()]
            # Processes average their gradients; ours are parts of one sum.
            accelerator.backward(torch.stack(means).sum() * accelerator.num_processes)
        for name, measure in output.losses.items():
            sums[name] = sums[name] + measure.total.detach()
    return {name: total / counts[name].clamp(min=1) for name, total in _reduce(sums, accelerator).items()}


def _global_counts(
    batches: list[Batch], targets: Mapping[str, str], accelerator: Accelerator
) -> tuple[dict[str, Tensor], Tensor]:
    counts = {
        name: torch.stack([(batch[key] != IGNORED).sum() for batch in batches]).sum()
        for name, key in targets.items()
        if key in batches[0]
    }
    tokens = torch.stack([batch["attention_mask"].sum() for batch in batches]).sum()
    counts = _reduce({**counts, "tokens": tokens}, accelerator)
    return counts, counts.pop("tokens")


def _reduce(sums: dict[str, Tensor], accelerator: Accelerator) -> dict[str, Tensor]:
    """Sums over all processes, in one exchange."""
    if accelerator.num_processes == 1:
        return sums
    together = accelerator.reduce(torch.stack(list(sums.values())), reduction="sum")
    return dict(zip(sums, together.unbind(), strict=True))


def _to(batch: Batch, device: torch.device) -> Batch:
    return {key: tensor.to(device, non_blocking=True) for key, tensor in batch.items()}


def _dropout_seed(*key: int) -> int:
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)
