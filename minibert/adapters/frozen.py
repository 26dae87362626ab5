"""No adapter at all: the encoder is frozen and only the head is trained."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn


@dataclass(frozen=True)
class FrozenConfig:
    """Only the head is trained, on the features of the encoder as they are."""

    kind: ClassVar[str] = "frozen"

    def parts(self, model: nn.Module) -> dict[str, nn.Module]:
        """Nothing listens anywhere."""
        return {}
