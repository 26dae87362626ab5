"""How alike are a query and a key? Five answers from the papers, each a number for every pair.

Shapes throughout: query [B, heads, Q, D], key [B, heads, K, D], scores [B, heads, Q, K]; Q and K may differ.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Dot(nn.Module):
    """score(q, k) = q · k  (Luong et al. 2015, "dot")."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores [B, heads, Q, K]."""
        return query @ key.mT


class ScaledDot(nn.Module):
    """score(q, k) = q · k / √D  (Vaswani et al. 2017, equation 1): the variance does not grow with the head size."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores [B, heads, Q, K]."""
        return query @ key.mT / math.sqrt(query.size(-1))


class Cosine(nn.Module):
    """score(q, k) = β cos(q, k)  (Graves et al. 2014, equations 5 and 6): only the direction counts.

    The strength β is learned, one for each head, and starts at √D, where the scores of random vectors are spread as
    those of the scaled dot product are.
    """

    def __init__(self, heads: int, head_size: int):
        super().__init__()
        self.strength = nn.Parameter(torch.full((heads, 1, 1), math.sqrt(head_size)))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores [B, heads, Q, K]."""
        return self.strength * (_direction(query) @ _direction(key).mT)


class General(nn.Module):
    """score(q, k) = qᵀ W k  (Luong et al. 2015, "general"), one W for each head; starts as the scaled dot product."""

    def __init__(self, heads: int, head_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(head_size).div(math.sqrt(head_size)).repeat(heads, 1, 1))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores [B, heads, Q, K]."""
        return query @ self.weight @ key.mT


class Additive(nn.Module):
    """score(q, k) = vᵀ tanh(W [q; k])  (Bahdanau et al. 2015, appendix A.1.2; Luong et al. 2015, "concat").

    W [q; k] is computed as W_q q + W_k k. The sum for every pair needs B · heads · block · K · D numbers at a time:
    queries are taken in blocks of `block`, so memory does not grow with Q.
    """

    def __init__(self, heads: int, head_size: int, block: int = 64):
        super().__init__()
        self.query_weight = nn.Parameter(_uniform(heads, head_size, head_size))
        self.key_weight = nn.Parameter(_uniform(heads, head_size, head_size))
        self.v = nn.Parameter(_uniform(heads, head_size, 1))
        self.block = block

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores [B, heads, Q, K]."""
        query, key = query @ self.query_weight, key @ self.key_weight
        return torch.cat([self._pairs(part, key) for part in query.split(self.block, dim=-2)], dim=-2)

    def _pairs(self, query: Tensor, key: Tensor) -> Tensor:
        hidden = torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3))  # [B, heads, block, K, D]
        return (hidden @ self.v.unsqueeze(1)).squeeze(-1)


SCORES: dict[str, Callable[[int, int], nn.Module]] = {
    "dot": lambda heads, head_size: Dot(),
    "scaled_dot": lambda heads, head_size: ScaledDot(),
    "cosine": Cosine,
    "general": General,
    "additive": Additive,
}
"""Each score by its name, made from the number of heads and the size of a head."""


def _direction(vectors: Tensor) -> Tensor:
    """Vectors of length 1; one shorter than 1e-4 is left short, so that its gradient fits half precision."""
    return F.normalize(vectors, dim=-1, eps=1e-4)


def _uniform(*shape: int) -> Tensor:
    """Values in ±1/√fan_in, where shape is (heads, fan_in, fan_out)."""
    bound = 1 / math.sqrt(shape[-2])
    return torch.empty(shape).uniform_(-bound, bound)
