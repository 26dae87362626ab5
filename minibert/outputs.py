"""What a model answers: named fields, losses as sums with counts, and nothing computed before it is read.

The dataclasses are not frozen, since compiled code can make no frozen ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from minibert.encoder import Encoded
from minibert.objectives import Measure


@dataclass
class BertOutput:
    """What the encoder makes of a batch: last_hidden_state [B, L, H]; pooler_output [B, H], [B, S, H] or None.

    pooler_output is a vector for each row, or for each of its S sequences where `cls_positions` were given.
    """

    last_hidden_state: Tensor
    pooler_output: Tensor | None


class Masked(NamedTuple):
    """The tokens to be predicted: what the encoder knows of each, states [N, H], and its label [N], or -100."""

    states: Tensor
    labels: Tensor


@dataclass
class TaskOutput:
    """What a model with a head says: `losses` by name as sums with counts, empty where no labels were given.

    `logits` are [B, C], or [B, L, C] for tokens.
    """

    logits: Tensor
    encoded: Encoded = field(repr=False)
    losses: Mapping[str, Measure] = field(default_factory=dict)

    @property
    def loss(self) -> Tensor | None:
        """The sum of the mean losses, or None."""
        return _loss(self.losses)

    @property
    def last_hidden_state(self) -> Tensor:
        """All tokens, [B, L, H]; a model that reads some of them computes the others at the first reading."""
        return self.encoded.everywhere


@dataclass
class LanguageModelOutput:
    """What a model with a masked-LM head says: `losses` as above, and states and logits that cost nothing until read.

    With labels the last layer was computed for the tokens to be predicted alone (`masked`); all else that is asked for
    is computed at the first reading.
    """

    encoded: Encoded = field(repr=False)
    head: Callable[[Tensor], Tensor] = field(repr=False)
    losses: Mapping[str, Measure] = field(default_factory=dict)
    masked: Masked | None = None
    seq_relationship_logits: Tensor | None = None

    @property
    def loss(self) -> Tensor | None:
        """The sum of the mean losses, or None."""
        return _loss(self.losses)

    @property
    def last_hidden_state(self) -> Tensor:
        """All tokens, [B, L, H]."""
        return self.encoded.everywhere

    @cached_property
    def masked_logits(self) -> Tensor | None:
        """Scores of every word where there are labels, [N, V] in their order; None without labels."""
        return None if self.masked is None else self.head(self.masked.states)

    @cached_property
    def prediction_logits(self) -> Tensor:
        """Scores of every word at every position, [B, L, V]."""
        return self.head(self.last_hidden_state)

    @property
    def logits(self) -> Tensor:
        """The same as `prediction_logits`."""
        return self.prediction_logits


@dataclass
class SpanOutput:
    """Where an answer begins and ends: start_logits and end_logits, both [B, L]."""

    start_logits: Tensor
    end_logits: Tensor
    encoded: Encoded = field(repr=False)
    losses: Mapping[str, Measure] = field(default_factory=dict)

    @property
    def loss(self) -> Tensor | None:
        """The mean of the losses of start and end, or None."""
        total = _loss(self.losses)
        return None if total is None else total / len(self.losses)

    @property
    def last_hidden_state(self) -> Tensor:
        """All tokens, [B, L, H]."""
        return self.encoded.everywhere


def _loss(losses: Mapping[str, Measure]) -> Tensor | None:
    return sum((measure.mean for measure in losses.values()), start=torch.zeros(())) if losses else None
