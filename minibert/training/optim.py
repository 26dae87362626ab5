"""AdamW in two groups: what is multiplied decays, what is added (biases, norms) does not."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minibert.errors import UserError
from minibert.types import NonNegativeFloat, PositiveFloat, UnitInterval


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW  (Loshchilov & Hutter 2019), with bias correction."""

    learning_rate: PositiveFloat = 1e-3
    """Peak learning rate."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled decay of matrices; biases and norms have none."""
    beta1: UnitInterval = 0.9
    """Decay of the mean of gradients."""
    beta2: UnitInterval = 0.999
    """Decay of the mean of squared gradients."""
    epsilon: PositiveFloat = 1e-8
    """Added to the root of the mean of squares."""


def make_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.AdamW:
    """AdamW over the trainable parameters of `model`; its step is one fused kernel."""
    return torch.optim.AdamW(
        parameter_groups(model, settings.weight_decay),
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Every trainable parameter in exactly one group: matrices with weight decay, vectors without."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trainable if parameter.dim() >= 2]
    vectors = [parameter for parameter in trainable if parameter.dim() < 2]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The same rate for every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def named_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimizer's tensors as `parameter/moment`: names instead of numbers, so that they fit any order or layout."""
    return {
        f"{name}/{moment}": tensor.detach().cpu()
        for name, parameter in model.named_parameters()
        for moment, tensor in optimizer.state.get(parameter, {}).items()
    }


def load_named_state(optimizer: torch.optim.Optimizer, model: nn.Module, state: dict[str, Tensor]) -> None:
    """Put back what `named_state` gave; nothing, where no update had been applied.

    Raises `UserError` unless it is about exactly the trainable parameters.
    """
    if not state:
        return
    by_name: dict[str, dict[str, Tensor]] = {}
    for key, tensor in state.items():
        name, moment = key.rsplit("/", 1)
        by_name.setdefault(name, {})[moment] = tensor
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if wrong := set(by_name) ^ set(trainable):
        raise UserError(f"the optimizer state in the checkpoint and the model differ in {sorted(wrong)[0]}")
    for name, parameter in trainable.items():
        moments = by_name[name]
        optimizer.state[parameter] = {
            moment: tensor if moment == "step" else tensor.to(parameter.device) for moment, tensor in moments.items()
        }
