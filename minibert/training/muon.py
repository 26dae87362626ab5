"""Muon for the matrices of the layers and AdamW for all else, as one optimizer.

Muon replaces the mean gradient of a matrix by the nearest matrix whose singular values are all about 1  (Jordan et al.
2024, https://kellerjordan.github.io/posts/muon). It is meant for hidden layers; embeddings, heads and vectors are not.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class MuonWithAdamW(torch.optim.Optimizer):
    """Two optimizers as one: its groups are those of both, its state holds that of both by parameter."""

    def __init__(self, muon: torch.optim.Muon, adamw: torch.optim.AdamW):
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self._muon, self._adamw, self._hidden = muon, adamw, len(muon.param_groups)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of each."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        self._step(self._muon, self.param_groups[: self._hidden])
        self._step(self._adamw, self.param_groups[self._hidden :])
        return loss

    def _step(self, part: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
        part.param_groups, part.state = groups, self.state  # each time, for loading a state makes new ones
        part.step()


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trainable weights of linear maps inside repeated layers (`nn.ModuleList`), unless tied to an embedding."""
    modules = list(model.modules())
    layers = [module for stack in modules if isinstance(stack, nn.ModuleList) for module in stack.modules()]
    linear = {id(module.weight) for module in layers if isinstance(module, nn.Linear)}
    embedded = {id(module.weight) for module in modules if isinstance(module, nn.Embedding)}
    chosen = linear - embedded
    return [weight for weight in model.parameters() if weight.requires_grad and id(weight) in chosen]
