"""From `--adapter.kind lora --adapter.rank 8` to the config of that kind."""

from dataclasses import dataclass
from typing import Literal

from minibert.adapters.base import AdapterConfig
from minibert.adapters.bottleneck import Nonlinearity
from minibert.adapters.kinds import make_config, refuse_meaningless
from minibert.adapters.lora import Target
from minibert.errors import UserError
from minibert.types import PositiveFloat, PositiveInt, UnitInterval


@dataclass(frozen=True)
class AdapterSettings:
    """What is trained: everything, or an adapter and the head. A field that is null takes the default of the kind."""

    kind: Literal["full", "frozen", "bitfit", "lora", "pfeiffer", "houlsby"] = "full"
    """full: all weights; frozen: the head only; bitfit: biases; lora: low-rank updates; the others: bottlenecks."""
    rank: PositiveInt | None = None
    """lora: rank of the updates; null = 8."""
    alpha: PositiveFloat | None = None
    """lora: the updates are scaled by alpha / rank; null = 16."""
    dropout: UnitInterval | None = None
    """lora: dropout of what the updates see; null = 0."""
    targets: list[Target] | None = None
    """lora: linear maps that are adapted; null = [query, value]."""
    rank_stabilised: bool | None = None
    """lora: scale by alpha / sqrt(rank) instead; null = false."""
    reduction: PositiveInt | None = None
    """pfeiffer, houlsby: the bottleneck is hidden_size / reduction wide; null = 16."""
    activation: Nonlinearity | None = None
    """pfeiffer, houlsby: nonlinearity of the bottleneck; null = relu for pfeiffer, gelu for houlsby."""

    def config(self) -> AdapterConfig | None:
        """The config of the kind, None for full training.

        Raises `UserError` naming a field that has no meaning for the kind or is out of range.
        """
        given = {name: value for name, value in vars(self).items() if name != "kind" and value is not None}
        try:
            refuse_meaningless(self.kind, given)
            return None if self.kind == "full" else make_config(self.kind, given)
        except UserError as error:
            raise UserError(f"adapter.{error}") from None
