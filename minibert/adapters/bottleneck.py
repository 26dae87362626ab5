"""Bottleneck adapters: a narrow network with a residual connection behind the sublayers of the encoder."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from minibert.adapters.seams import hidden_size, seams
from minibert.errors import UserError
from minibert.types import PositiveInt

Nonlinearity = Literal["relu", "gelu", "silu"]


@dataclass(frozen=True)
class PfeifferConfig:
    """A bottleneck behind the feed-forward network of each layer  (Pfeiffer et al. 2021)."""

    kind: ClassVar[str] = "pfeiffer"

    reduction: PositiveInt = 16
    """The bottleneck is hidden_size / reduction wide, rounded down."""
    activation: Nonlinearity = "relu"
    """Its nonlinearity."""

    def __post_init__(self) -> None:
        _check(self.reduction, self.activation)

    def parts(self, model: nn.Module) -> dict[str, nn.Module]:
        """One bottleneck for each layer."""
        return _bottlenecks(model, ["feed_forward"], self.reduction, self.activation)


@dataclass(frozen=True)
class HoulsbyConfig:
    """Bottlenecks behind attention and the feed-forward network of each layer  (Houlsby et al. 2019).

    The paper trains the layer norms too; here they stay frozen, since the base keeps its weights.
    """

    kind: ClassVar[str] = "houlsby"

    reduction: PositiveInt = 16
    """The bottleneck is hidden_size / reduction wide, rounded down."""
    activation: Nonlinearity = "gelu"
    """Its nonlinearity."""

    def __post_init__(self) -> None:
        _check(self.reduction, self.activation)

    def parts(self, model: nn.Module) -> dict[str, nn.Module]:
        """Two bottlenecks for each layer."""
        return _bottlenecks(model, ["attention", "feed_forward"], self.reduction, self.activation)


class Bottleneck(nn.Module):
    """y + U f(D y + d) + u, where y is what the sublayer returns  (Houlsby et al. 2019, figure 2).

    It stands before dropout and the residual sum. D is [width, H] and starts random; U [H, width] and u start at zero.
    """

    def __init__(self, size: int, width: int, activation: Nonlinearity):
        super().__init__()
        self.down = nn.Linear(size, width)
        self.up = nn.Linear(width, size)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)
        self.activation = _NONLINEARITIES[activation]

    def forward(self, _: Tensor, output: Tensor) -> Tensor:
        """output [..., H] -> [..., H]."""
        return output + self.up(self.activation(self.down(output)))


_NONLINEARITIES: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


def _bottlenecks(model: nn.Module, places: list[str], reduction: int, activation: Nonlinearity) -> dict[str, nn.Module]:
    size = hidden_size(model)
    if reduction > size:
        raise UserError(f"reduction: expected no more than the hidden size of {size}, got {reduction}")
    return {path: Bottleneck(size, size // reduction, activation) for path in seams(model, places)}


def _check(reduction: int, activation: str) -> None:
    if reduction < 1:
        raise UserError(f"reduction: expected 1 or more, got {reduction}")
    if activation not in get_args(Nonlinearity):
        raise UserError(f"activation: expected one of {', '.join(get_args(Nonlinearity))}, got {activation!r}")
