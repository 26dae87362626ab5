"""What a model says of what it read: a pooled vector, masked words, whether two sentences belong together, labels."""

from torch import Tensor, nn

from minibert.dropout import Dropout
from minibert.encoder import Activation
from minibert.linear_cross_entropy import linear_cross_entropy
from minibert.objectives import Measure


class Pooler(nn.Module):
    """tanh(W h_[CLS] + b): one vector for a whole sequence  (Devlin et al. 2019; google-research/bert, modeling.py)."""

    def __init__(self, size: int):
        super().__init__()
        self.dense = nn.Linear(size, size)

    def forward(self, first: Tensor) -> Tensor:
        """The state of the first token of each sequence, [..., H] -> [..., H]."""
        return self.dense(first).tanh()


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
        """hidden [..., H] -> [..., V]."""
        return self.decoder(self._transform(hidden))

    def loss(self, hidden: Tensor, labels: Tensor) -> Measure:
        """The cross-entropy of hidden [N, H] with the true tokens, labels [N] or -100; no logits [N, V] are kept."""
        return linear_cross_entropy(self._transform(hidden), self.decoder.weight, self.decoder.bias, labels)

    def _transform(self, hidden: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(hidden)))


class ClassificationHead(nn.Module):
    """Dropout and one linear map, for a pooled vector [B, H] or for each token [B, L, H]."""

    def __init__(self, size: int, labels: int, dropout: float):
        super().__init__()
        self.dropout = Dropout(dropout)
        self.linear = nn.Linear(size, labels)

    def forward(self, features: Tensor) -> Tensor:
        """features [..., H] -> [..., labels]."""
        return self.linear(self.dropout(features))
