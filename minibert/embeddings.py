"""What is token i, where does it stand, to which segment does it belong? The sum of three vectors, normalised."""

import torch
from torch import Tensor, nn

from minibert.dropout import Dropout


class Embeddings(nn.Module):
    """Token + position + segment embeddings, layer norm, dropout  (Devlin et al. 2019, figure 2).

    Args:
        tokens, positions, segments: numbers of rows of the three tables.
        size: width H.
        padding: id of [PAD], whose row starts at zero and gets no gradient.
    """

    def __init__(
        self, tokens: int, positions: int, segments: int, size: int, *, padding: int, eps: float, dropout: float
    ):
        super().__init__()
        self.tokens = nn.Embedding(tokens, size, padding_idx=padding)
        self.positions = nn.Embedding(positions, size)
        self.segments = nn.Embedding(segments, size)
        self.norm = nn.LayerNorm(size, eps=eps)
        self.dropout = Dropout(dropout)

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """input_ids, token_type_ids (default 0), position_ids (default 0, 1, ...), each [B, L] -> [B, L, H].

        Raises `ValueError` for a sequence longer than the positions and, on the CPU, for ids outside a table.
        """
        length = input_ids.size(-1)
        if position_ids is None:
            _check_length(length, self.positions.num_embeddings)
            position_ids = torch.arange(length, device=input_ids.device)
        else:
            _check_ids(position_ids, self.positions.num_embeddings, "position_ids", "max_position_embeddings")
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        _check_ids(input_ids, self.tokens.num_embeddings, "input_ids", "vocab_size")
        _check_ids(token_type_ids, self.segments.num_embeddings, "token_type_ids", "type_vocab_size")
        summed = self.tokens(input_ids) + self.positions(position_ids) + self.segments(token_type_ids)
        return self.dropout(self.norm(summed))


def _check_length(length: int, limit: int) -> None:
    if length > limit:
        raise ValueError(
            f"a sequence of {length} tokens is longer than the limit of {limit} (max_position_embeddings); "
            "truncate it, or build the model with more positions"
        )


def _check_ids(ids: Tensor, rows: int, name: str, setting: str) -> None:
    """On a GPU looking at the values would wait for it; there the table lookup itself complains."""
    if ids.device.type != "cpu" or ids.numel() == 0 or torch.compiler.is_compiling():
        return
    low, high = map(int, ids.aminmax())
    if low < 0 or high >= rows:
        wrong = low if low < 0 else high
        raise ValueError(f"{name} holds {wrong}, expected 0 to {rows - 1} ({setting} = {rows})")
