"""What a model answers: named fields, losses as sums with counts, and nothing computed before it is read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from minibert.objectives import Measure


@dataclass(frozen=True)
class BertOutput:
    """What the encoder makes of a batch: last_hidden_state [B, L, H]; pooler_output [B, H], [B, S, H] or None.

    pooler_output is a vector for each row, or for each of its S sequences where `cls_positions` were given.
    """

    last_hidden_state: Tensor
    pooler_output: Tensor | None


@dataclass(frozen=True)
class TaskOutput:
    """What a model with a head says: `losses` by name as sums with counts, empty where no labels were given.

    `logits` are [B, C], or [B, L, C] for tokens.
    """

    logits: Tensor
    last_hidden_state: Tensor
    losses: Mapping[str, Measure] = field(default_factory=dict)

    @property
    def loss(self) -> Tensor | None:
        """The sum of the mean losses, or None."""
        return _loss(self.losses)


@dataclass(frozen=True)
class LanguageModelOutput:
    """What a model with a masked-LM head says: `losses` as above, and logits that cost nothing until they are read.

    Scores of the whole vocabulary exist at the labelled positions only (`masked_logits` [N, V], in the order of the
    flattened labels); `prediction_logits` [B, L, V] are computed at the first reading.
    """

    last_hidden_state: Tensor
    head: Callable[[Tensor], Tensor] = field(repr=False)
    losses: Mapping[str, Measure] = field(default_factory=dict)
    masked_logits: Tensor | None = None
    seq_relationship_logits: Tensor | None = None

    @property
    def loss(self) -> Tensor | None:
        """The sum of the mean losses, or None."""
        return _loss(self.losses)

    @cached_property
    def prediction_logits(self) -> Tensor:
        """Scores of every word at every position, [B, L, V]."""
        return self.head(self.last_hidden_state)

    @property
    def logits(self) -> Tensor:
        """The same as `prediction_logits`."""
        return self.prediction_logits


@dataclass(frozen=True)
class SpanOutput:
    """Where an answer begins and ends: start_logits and end_logits, both [B, L]."""

    start_logits: Tensor
    end_logits: Tensor
    last_hidden_state: Tensor
    losses: Mapping[str, Measure] = field(default_factory=dict)

    @property
    def loss(self) -> Tensor | None:
        """The mean of the losses of start and end, or None."""
        total = _loss(self.losses)
        return None if total is None else total / len(self.losses)


def _loss(losses: Mapping[str, Measure]) -> Tensor | None:
    return sum((measure.mean for measure in losses.values()), start=torch.zeros(())) if losses else None
