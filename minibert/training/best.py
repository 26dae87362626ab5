"""Which weights were best? Those of the best score so far, kept in memory and put back at the end."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from minibert.errors import UserError
from minibert.metrics import is_better


class Best:
    """The best epoch so far: its scores, and the weights that were trained."""

    def __init__(self, metric: str):
        self.metric, self.step, self.scores = metric, 0, dict[str, float]()
        self._weights: dict[str, Tensor] = {}

    def offer(self, step: int, scores: dict[str, float], model: nn.Module) -> bool:
        """Keep these weights if their score is better than all before."""
        if not is_better(scores[self.metric], self.scores.get(self.metric), self.metric):
            return False
        self.step, self.scores = step, scores
        self._weights = {name: weight.detach().clone() for name, weight in trained(model)}
        return True

    def restore(self, model: nn.Module) -> None:
        """Put the best weights back."""
        if not self._weights:
            raise UserError(f"{self.metric} was not a number in any epoch; try a smaller learning rate")
        with torch.no_grad():
            for name, weight in trained(model):
                weight.copy_(self._weights[name])


def trained(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters that training changes."""
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
