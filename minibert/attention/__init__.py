"""Attention as three questions: how alike (`scores`), who may look (`masks`), how sharply (`weights`)."""

from minibert.attention import masks
from minibert.attention.multihead import MultiHeadAttention, attend
from minibert.attention.scores import SCORES, Additive, Cosine, Dot, General, ScaledDot
from minibert.attention.weights import WEIGHTS, hard, soft

__all__ = [
    "SCORES",
    "WEIGHTS",
    "Additive",
    "Cosine",
    "Dot",
    "General",
    "MultiHeadAttention",
    "ScaledDot",
    "attend",
    "hard",
    "masks",
    "soft",
]
