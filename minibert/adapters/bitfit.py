"""BitFit: only the biases learn; what each learns is kept beside it, so that the base stays as it is."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from minibert.adapters.seams import encoder_prefix


@dataclass(frozen=True)
class BitFitConfig:
    """Every bias of the encoder is trained, those of layer norms and pooler included  (Ben Zaken et al. 2022)."""

    kind: ClassVar[str] = "bitfit"

    def parts(self, model: nn.Module) -> dict[str, nn.Module]:
        """One shift for each bias."""
        encoder = encoder_prefix(model)
        biases = [key for key, _ in model.named_parameters() if key.startswith(encoder) and key.endswith(".bias")]
        return {key.removesuffix(".bias"): Shift(len(model.get_parameter(key))) for key in biases}


class Shift(nn.Module):
    """y + δ, where y = W x + b is the answer of the seam: the same as training b. δ starts at zero."""

    def __init__(self, outputs: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, _: Tensor, output: Tensor) -> Tensor:
        """output [..., outputs] -> [..., outputs]."""
        return output + self.bias.to(output.dtype)

    def merged(self, seam: nn.Module) -> dict[str, Tensor]:
        """b + δ."""
        return {"bias": seam.get_parameter("bias") + self.bias}
