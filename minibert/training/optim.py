"""AdamW, LAMB or Muon in groups: what is multiplied decays, what is added (biases, norms) does not."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from minibert.errors import UserError
from minibert.training.lamb import Lamb
from minibert.training.muon import MuonWithAdamW, hidden_matrices
from minibert.types import NonNegativeFloat, PositiveFloat, UnitInterval


@dataclass(frozen=True)
class OptimizerSettings:
    """Optimizer, with bias correction.

    adamw: Loshchilov & Hutter 2019. lamb, for batches of thousands: You et al. 2020. muon, which makes the steps of the
    layers' matrices orthogonal and leaves all else to AdamW: Jordan et al. 2024, scaled as in Liu et al. 2025.
    """

    kind: Literal["adamw", "lamb", "muon"] = "adamw"
    """adamw; lamb: steps as long as a matrix asks for; muon: orthogonal steps of the layers' matrices, else adamw."""
    learning_rate: PositiveFloat = 1e-3
    """Peak learning rate; adamw and muon like the same one."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled decay of matrices; biases and norms have none."""
    beta1: UnitInterval = 0.9
    """Decay of the mean of gradients; with muon, where it has momentum instead, of the rest."""
    beta2: UnitInterval = 0.999
    """Decay of the mean of squared gradients."""
    epsilon: PositiveFloat = 1e-8
    """Added to the root of the mean of squares; the paper of lamb has 1e-6."""
    momentum: UnitInterval = 0.95
    """muon: decay of the mean of gradients of the layers' matrices (Nesterov's)."""

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2", "momentum"):
            if getattr(self, name) == 1:
                raise UserError(f"optimizer.{name}: 1.0 would forget nothing and learn nothing; expected less than 1")


def make_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """The optimizer over the trainable parameters of `model`.

    Raises `UserError` where muon has no matrices to train.
    """
    return _KINDS[settings.kind](model, settings)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Every trainable parameter in exactly one group: matrices with weight decay, vectors without."""
    return _groups([parameter for parameter in model.parameters() if parameter.requires_grad], weight_decay)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The same rate for every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def _groups(parameters: list[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    matrices = [parameter for parameter in parameters if parameter.dim() >= 2]
    vectors = [parameter for parameter in parameters if parameter.dim() < 2]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def _adamw_of(groups: list[dict[str, Any]], settings: OptimizerSettings) -> torch.optim.AdamW:
    """AdamW, whose step is one fused kernel."""
    return torch.optim.AdamW(
        groups,
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )


def _adamw(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    return _adamw_of(parameter_groups(model, settings.weight_decay), settings)


def _lamb(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    matrices, vectors = parameter_groups(model, settings.weight_decay)
    return Lamb(
        [{**matrices, "adapts": True}, {**vectors, "adapts": False}],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
    )


def _muon(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    hidden = hidden_matrices(model)
    if not hidden:
        raise UserError("optimizer.kind: muon needs matrices of layers to train, and there are none here; use adamw")
    chosen = {id(matrix) for matrix in hidden}
    rest = [weight for weight in model.parameters() if weight.requires_grad and id(weight) not in chosen]
    muon = torch.optim.Muon(
        hidden,
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        momentum=settings.momentum,
        adjust_lr_fn="match_rms_adamw",
    )
    return MuonWithAdamW(muon, _adamw_of(_groups(rest, settings.weight_decay), settings))


_KINDS: dict[str, Callable[[nn.Module, OptimizerSettings], torch.optim.Optimizer]] = {
    "adamw": _adamw,
    "lamb": _lamb,
    "muon": _muon,
}
