"""Who may look at whom? True where a query may attend to a key.

Masks are Boolean tensors that broadcast to [B, heads, Q, K]; `&` and `|` put them together.
"""

import torch
from torch import Tensor


def padding(attention_mask: Tensor) -> Tensor:
    """Everyone may look at real tokens, no one at padding: [B, K] of 0 and 1 (any dtype) -> [B, 1, 1, K].

    Raises `ValueError` for another shape; where it costs no synchronisation (on the CPU) also for other values.
    """
    if attention_mask.dim() != 2:
        raise ValueError(f"attention_mask must be [batch, length], got shape {list(attention_mask.shape)}")
    allowed = attention_mask.bool()
    is_costly = attention_mask.is_cuda or torch.compiler.is_compiling()
    if not is_costly and not torch.equal(allowed.to(attention_mask.dtype), attention_mask):
        raise ValueError("attention_mask must hold 0 (padding) and 1 (token) only")
    return allowed[:, None, None, :]


def packed(sequence_ids: Tensor) -> Tensor:
    """Several sequences in one row do not see each other: [B, L] of sequence numbers, 0 = padding -> [B, 1, L, L]."""
    same = sequence_ids[:, :, None] == sequence_ids[:, None, :]
    return (same & (sequence_ids != 0)[:, None, :])[:, None]


def window(queries: int, keys: int, size: int, device: torch.device | None = None) -> Tensor:
    """Local attention: query i sees the keys i - size .. i + size -> [Q, K]  (Beltagy et al. 2020, section 3.1)."""
    distance = torch.arange(queries, device=device)[:, None] - torch.arange(keys, device=device)[None, :]
    return distance.abs() <= size


def global_tokens(positions: Tensor, count: int) -> Tensor:
    """Tokens at the positions 0 .. count - 1 see all and are seen by all (`| window(...)`)  (Beltagy et al. 2020).

    positions [B, L], which start again in each packed sequence -> [B, 1, L, L].
    """
    is_global = positions < count
    return (is_global[:, :, None] | is_global[:, None, :])[:, None]
