"""LoRA: what training adds to a weight has a low rank, so it is learned as the product of two thin matrices."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from minibert.adapters.seams import seams, shape
from minibert.errors import UserError
from minibert.types import PositiveFloat, PositiveInt, UnitInterval

Target = Literal["query", "key", "value", "output", "up", "down"]


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adaptation  (Hu et al. 2022)."""

    kind: ClassVar[str] = "lora"

    rank: PositiveInt = 8
    """Rank r of the update."""
    alpha: PositiveFloat = 16.0
    """Strength α of the update."""
    dropout: UnitInterval = 0.0
    """Dropout of what the update sees in training, less than 1."""
    targets: tuple[Target, ...] = ("query", "value")
    """Linear maps of each layer that are adapted."""
    rank_stabilised: bool = False
    """Scale by α / √r, with which a large rank learns as fast as a small one  (Kalajdzievski 2023)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", tuple(self.targets))
        known = get_args(Target)
        if not self.targets or not set(self.targets) <= set(known):
            raise UserError(f"targets: expected some of {', '.join(known)}, got {list(self.targets)}")
        if self.rank < 1:
            raise UserError(f"rank: expected 1 or more, got {self.rank}")
        if self.alpha <= 0:
            raise UserError(f"alpha: expected more than 0, got {self.alpha}")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout: expected 0 or more and less than 1, got {self.dropout}")

    @property
    def scale(self) -> float:
        """The factor of the update: α / r, or α / √r where rank-stabilised."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilised else self.rank)

    def parts(self, model: nn.Module) -> dict[str, nn.Module]:
        """One update for each targeted map of each layer."""
        return {path: LowRank(*shape(seam), self) for path, seam in seams(model, self.targets).items()}


class LowRank(nn.Module):
    """y + s B A dropout(x), where y = W x + b is what the seam returns  (Hu et al. 2022, equation 3).

    A is [r, inputs] and starts uniform in ±1/√inputs, B is [outputs, r] and starts at zero; s is the scale.
    """

    def __init__(self, outputs: int, inputs: int, config: LoraConfig):
        super().__init__()
        self.lora_A = nn.Linear(inputs, config.rank, bias=False)
        self.lora_B = nn.Linear(config.rank, outputs, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.dropout = config.dropout
        self.scale = config.scale

    def forward(self, given: Tensor, output: Tensor) -> Tensor:
        """given [..., inputs], output [..., outputs] -> [..., outputs]."""
        low = self.lora_A(F.dropout(given, self.dropout, self.training))
        return output + self.lora_B(low * self.scale)

    def merged(self, seam: nn.Module) -> dict[str, Tensor]:
        """W + s B A, summed in float32 or wider."""
        update = self.scale * (self.lora_B.weight.float() @ self.lora_A.weight.float())
        return {"weight": seam.get_parameter("weight") + update}
