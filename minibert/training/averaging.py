"""Averages of weights, which are often better than the last ones: over updates, or over checkpoints."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from minibert.errors import UserError
from minibert.training.best import trained
from minibert.training.sharding import like, plain_name, whole
from minibert.types import PositiveInt, UnitInterval


@dataclass(frozen=True)
class AveragingSettings:
    """Averages of the weights."""

    ema_decay: UnitInterval | None = None
    """Decay of an average that follows the weights, such as 0.999; null = none."""
    last: PositiveInt | None = None
    """At the end, also save the mean of the last so many checkpoints; null = none."""

    def __post_init__(self) -> None:
        if self.ema_decay == 1:
            raise UserError("averaging.ema_decay: 1.0 would never follow the weights; expected less than 1")


class Ema:
    """The exponential moving average of the trainable weights, with bias correction  (Kingma & Ba 2015, section 3).

        a_t = (1-d) Σ d^(t-i) w_i / (1-d^t)  for i = 1 .. t,   as   a_t = a_(t-1) + (1-d) / (1-d^t) · (w_t - a_(t-1))

    So it is a true mean from the first update on, in which the weights before that have no part. Only operations on
    single elements are used: weights may be sharded.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay, self.updates = decay, 0
        self._averages = {name: weight.detach().clone() for name, weight in _weights(model)}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Follow the weights, after an update that was applied."""
        self.updates += 1
        share = (1 - self.decay) / (1 - self.decay**self.updates)
        averages = [self._averages[name] for name, _ in _weights(model)]
        torch._foreach_lerp_(averages, [weight for _, weight in _weights(model)], share)

    def state(self) -> dict[str, Tensor]:
        """The averages by name of the weight, whole and on the CPU, to be saved together with the number `updates`.

        Where they are cut up over the processes, all must ask together, whoever needs the answer.
        """
        return {name: whole(average).cpu() for name, average in self._averages.items()}

    def load(self, state: dict[str, Tensor], updates: int) -> None:
        """Go on from a state that was saved after so many updates.

        Raises `UserError` unless it is about exactly the trainable weights.
        """
        if wrong := state.keys() ^ self._averages.keys():
            raise UserError(f"the averages in the checkpoint and the model differ in {min(wrong)}")
        for name, average in self._averages.items():
            average.copy_(like(state[name], average))
        self.updates = updates

    @contextmanager
    def swapped_in(self, model: nn.Module) -> Iterator[None]:
        """Inside, the model has the averages for its weights; afterwards it has its own again, to the bit."""
        weights = {name: weight.detach().clone() for name, weight in _weights(model)}
        _put(self._averages, model)
        try:
            yield
        finally:
            _put(weights, model)


def mean_of_checkpoints(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of each tensor of several checkpoint directories, taken in float64; the dtype is as it was.

    What is not of floating point is as in the last. Raises `UserError` where there is none, a file cannot be read,
    or names or shapes differ.
    """
    if not paths:
        raise UserError("there is no checkpoint to take the mean of; expected one at least")
    files = [_open(path / "model.safetensors") for path in paths]
    names = [set(file.keys()) for file in files]
    for path, found in zip(paths, names, strict=True):
        if wrong := found ^ names[0]:
            raise UserError(f"{path} and {paths[0]} cannot be averaged: only one of them has {min(wrong)}")
    return {name: _mean(name, paths, files) for name in sorted(set[str]().union(*names))}


def _mean(name: str, paths: list[Path], files: list[Any]) -> Tensor:
    tensors: list[Tensor] = [file.get_tensor(name) for file in files]
    for path, tensor in zip(paths, tensors, strict=True):
        if tensor.shape != tensors[0].shape:
            shapes = f"{list(tensor.shape)} and {list(tensors[0].shape)}"
            raise UserError(f"{path} and {paths[0]} cannot be averaged: {name} is {shapes}")
    if not tensors[-1].is_floating_point():
        return tensors[-1]
    total = sum((tensor.double() for tensor in tensors), torch.zeros((), dtype=torch.float64))
    return (total / len(tensors)).to(tensors[-1].dtype)


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read ({error}); expected the weights of a checkpoint") from None


def _weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The trainable weights by the names that they have without any wrapper."""
    plain = model.module if isinstance(model, DistributedDataParallel) else model
    return ((plain_name(name), weight) for name, weight in trained(plain))


@torch.no_grad()
def _put(weights: dict[str, Tensor], model: nn.Module) -> None:
    for name, weight in _weights(model):
        weight.copy_(weights[name])
