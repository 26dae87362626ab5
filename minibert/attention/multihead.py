"""Multi-head attention: every head asks how alike (score), who may look (mask), how sharply (weights).

    hidden [B, Q, H] -> query ┐
    memory [B, K, H] -> key   ├ heads [B, h, ·, D] -> score -> mask -> weights -> Σ weights · value -> output [B, Q, H]
    memory [B, K, H] -> value ┘

With memory = hidden it is self-attention, with another memory cross-attention.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minibert.attention.dropped import dropped_attention
from minibert.attention.scores import ScaledDot
from minibert.attention.weights import Weighting, soft
from minibert.dropout import drop


class MultiHeadAttention(nn.Module):
    """Multi-head attention  (Vaswani et al. 2017, section 3.2.2).

    Args:
        hidden_size: width H of queries, memory and output; `heads` must divide it.
        heads: number of heads h; each has the size D = H / h.
        score: maps query [B, h, Q, D] and key [B, h, K, D] to scores [B, h, Q, K]; scaled dot product by default.
        weights: maps scores and mask to weights [B, h, Q, K]; softmax by default.
        dropout: probability of dropping a weight in training.

    Adapters listen at `query`, `key`, `value` and `output`; see `minibert.encoder`.
    """

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        score: nn.Module | None = None,
        weights: Weighting = soft,
        dropout: float = 0.0,
    ):
        super().__init__()
        if hidden_size % heads:
            raise ValueError(f"{heads} heads do not divide a hidden size of {hidden_size}")
        self.heads = heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, hidden_size)
        self.score = ScaledDot() if score is None else score
        self.weights = weights
        self.dropout = dropout

    def forward(
        self,
        hidden: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """hidden [B, Q, H], memory [B, K, H] (default: hidden), mask broadcastable to [B, h, Q, K] -> [B, Q, H].

        places [N]: of the B · Q queries, those whose output is wanted -> [N, H].
        """
        query, key, value = map(self._split, self._project(hidden, memory))
        context = attend(query, key, value, mask, self.score, self.weights, self.dropout if self.training else 0.0)
        context = context.transpose(1, 2).flatten(2)
        return self.output(context if places is None else context.flatten(0, 1).index_select(0, places))

    def attention_map(
        self,
        hidden: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """The weights [B, h, Q, K] that `forward` applies, for looking at; fused kernels never write them down.

        Arguments are those of `forward`; all queries are shown, whatever the places.
        """
        memory = hidden if memory is None else memory
        query, key = self._split(self.query(hidden)), self._split(self.key(memory))
        return self.weights(self.score(query, key), _reach_prefix(mask, key))

    def _project(self, hidden: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each [B, ·, H]; where all are made from one input, in one product."""
        if memory is not None or _listened(self.query, self.key, self.value):
            memory = hidden if memory is None else memory
            return self.query(hidden), self.key(memory), self.value(memory)
        weight = torch.cat([self.query.weight, self.key.weight, self.value.weight])
        bias = torch.cat([self.query.bias, self.key.bias, self.value.bias])
        query, key, value = F.linear(hidden, weight, bias).chunk(3, dim=-1)
        return query, key, value

    def _split(self, projected: Tensor) -> Tensor:
        """[B, L, H] -> [B, h, L, D]."""
        return projected.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    score: nn.Module,
    weights: Weighting,
    dropout: float = 0.0,
) -> Tensor:
    """The context Σ weights(score(query, key), mask) · value: [B, h, Q, D].

    Softmax of scaled dot products is one fused kernel; anything else is the formula as it stands.
    """
    mask = _reach_prefix(mask, key)
    if not (isinstance(score, ScaledDot) and weights is soft):
        return drop(weights(score(query, key), mask), dropout) @ value
    if 0 < dropout < 1 and query.device.type == "cpu" and not torch.compiler.is_compiling():
        return dropped_attention(query, key, value, mask, dropout)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)


def _listened(*modules: nn.Module) -> bool:
    """Whether someone listens at a seam, who must see what goes in and out there."""
    return any(type(one) is not nn.Linear or one._forward_hooks or one._forward_pre_hooks for one in modules)


def _reach_prefix(mask: Tensor | None, key: Tensor) -> Tensor | None:
    """Keys in front of those that the mask speaks of (a learned prefix) are seen by every query."""
    if mask is None or mask.size(-1) == key.size(-2):
        return mask
    return F.pad(mask, (key.size(-2) - mask.size(-1), 0), value=True)
