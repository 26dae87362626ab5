"""What a model says of what it read: a pooled vector, masked words, whether two sentences belong together, labels."""

import torch
from torch import Tensor, nn

from minibert.encoder import Activation


class Pooler(nn.Module):
    """tanh(W h_[CLS] + b): one vector for a whole sequence  (Devlin et al. 2019; google-research/bert, modeling.py)."""

    def __init__(self, size: int):
        super().__init__()
        self.dense = nn.Linear(size, size)

    def forward(self, hidden: Tensor, cls_positions: Tensor | None = None) -> Tensor:
        """hidden [B, L, H] -> [B, H], read at the first token; or [B, S, H], read at cls_positions [B, S]."""
        if cls_positions is None:
            return self.dense(hidden[:, 0]).tanh()
        rows = torch.arange(len(hidden), device=hidden.device)[:, None]
        return self.dense(hidden[rows, cls_positions]).tanh()


class MaskedLanguageModelHead(nn.Module):
    """Scores of every word of the vocabulary; its decoder is the token embedding unless `tie` is unset.

    Args:
        tokens: the token embedding, [V, H].
    """

    def __init__(self, tokens: nn.Embedding, activation: Activation, eps: float, tie: bool):
        super().__init__()
        vocabulary, size = tokens.weight.shape
        self.dense = nn.Linear(size, size)
        self.activation = activation
        self.norm = nn.LayerNorm(size, eps=eps)
        self.decoder = nn.Linear(size, vocabulary)
        if tie:
            self.decoder.weight = tokens.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden [..., H] -> [..., V]; in training it is given masked positions only, [N, H] -> [N, V]."""
        return self.decoder(self.norm(self.activation(self.dense(hidden))))


class ClassificationHead(nn.Module):
    """Dropout and one linear map, for a pooled vector [B, H] or for each token [B, L, H]."""

    def __init__(self, size: int, labels: int, dropout: float):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(size, labels)

    def forward(self, features: Tensor) -> Tensor:
        """features [..., H] -> [..., labels]."""
        return self.linear(self.dropout(features))
