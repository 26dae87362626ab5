"""Attention as a whole: any score with any weights under any mask, against slow loops, torch, and symmetries."""

import math

import pytest
import torch
from torch import nn

from minibert.attention import SCORES, WEIGHTS, MultiHeadAttention, ScaledDot, attend, masks, soft

BATCH, HEADS, QUERIES, KEYS, SIZE = 2, 3, 5, 7, 11
HIDDEN = HEADS * SIZE
MASKS = {
    "everyone": None,
    "padding": masks.padding(torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0, 0]])),
    "a row of padding": masks.padding(torch.tensor([[1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0]])),
    "packed": masks.packed(torch.tensor([[1, 1, 1, 2, 2, 2, 0], [1, 2, 2, 2, 2, 3, 3]]))[:, :, :QUERIES],
    "window": masks.window(QUERIES, KEYS, 1),
    "window and global": masks.window(QUERIES, KEYS, 1)
    | masks.global_tokens(torch.arange(KEYS)[None], 1)[0, 0, :QUERIES],
    "each head its own": torch.rand(BATCH, HEADS, QUERIES, KEYS, generator=torch.Generator().manual_seed(0)) < 0.5,
}
BIG = {torch.float32: 1e15, torch.bfloat16: 1e15, torch.float16: 300.0}
"""Queries and keys of this size have scores above the largest float16, 65504; in float16 they overflow."""

parts = pytest.mark.parametrize(
    ("score", "weights"), [(s, w) for s in SCORES for w in WEIGHTS], ids=[f"{s}-{w}" for s in SCORES for w in WEIGHTS]
)
every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def make(score: str = "scaled_dot", weights: str = "soft", **settings) -> MultiHeadAttention:
    """Attention in float64 that is not in its initial state."""
    attention = MultiHeadAttention(HIDDEN, HEADS, SCORES[score](HEADS, SIZE), WEIGHTS[weights], **settings).double()
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.3)
    return attention.eval()


def heads(length: int, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(BATCH, HEADS, length, SIZE) * scale).to(dtype).requires_grad_()


@every_mask
def test_the_context_is_the_weighted_sum_of_values_that_slow_loops_find(mask):
    query, key, value = (heads(length).detach() for length in (QUERIES, KEYS, KEYS))
    allowed = torch.ones(1, dtype=torch.bool) if mask is None else mask
    allowed = allowed.expand(BATCH, HEADS, QUERIES, KEYS).tolist()
    expected = torch.zeros(BATCH, HEADS, QUERIES, SIZE).double()
    for b in range(BATCH):
        for h in range(HEADS):
            for i in range(QUERIES):
                seen = [j for j in range(KEYS) if allowed[b][h][i][j]]
                alike = [math.exp(float(query[b, h, i] @ key[b, h, j]) / math.sqrt(SIZE)) for j in seen]
                for j, weight in zip(seen, alike, strict=True):
                    expected[b, h, i] += weight / sum(alike) * value[b, h, j]
    assert torch.allclose(attend(query, key, value, mask, ScaledDot(), soft), expected, atol=1e-12)


@every_mask
def test_the_fused_kernel_equals_the_formula_written_out_and_so_do_its_gradients(mask):
    inputs = heads(QUERIES), heads(KEYS), heads(KEYS)
    query, key, value = inputs
    fused, written_out = attend(query, key, value, mask, ScaledDot(), soft), soft(ScaledDot()(query, key), mask) @ value
    assert torch.allclose(fused, written_out, atol=1e-12)
    upstream = torch.randn_like(fused)
    for one, other in zip(
        torch.autograd.grad(fused, inputs, upstream), torch.autograd.grad(written_out, inputs, upstream), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-12)


@parts
@every_mask
@pytest.mark.parametrize("dtype", BIG)
@pytest.mark.parametrize("scale", ["ordinary", "overflowing"])
def test_no_score_weights_mask_or_dtype_gives_nan(score, weights, mask, dtype, scale):
    scale = BIG[dtype] if scale == "overflowing" else 1.0
    inputs = [heads(QUERIES, dtype, scale), heads(KEYS, dtype, scale), heads(KEYS, dtype)]
    score = SCORES[score](HEADS, SIZE).to(dtype)
    context = attend(*inputs, mask, score, WEIGHTS[weights])
    context.float().square().mean().backward()
    assert context.dtype == dtype
    assert context.isfinite().all()
    for tensor in (*inputs, *score.parameters()):
        assert tensor.grad is None or tensor.grad.isfinite().all()


@parts
@pytest.mark.parametrize("dtype", BIG)
def test_a_row_of_pure_padding_gets_zeros_and_leaves_the_other_row_as_it_is_alone(score, weights, dtype):
    inputs = [heads(QUERIES, dtype), heads(KEYS, dtype), heads(KEYS, dtype)]
    score, mask = SCORES[score](HEADS, SIZE).to(dtype), MASKS["a row of padding"]
    context = attend(*inputs, mask, score, WEIGHTS[weights])
    alone = attend(*(tensor[:1] for tensor in inputs), mask[:1], score, WEIGHTS[weights])
    assert torch.allclose(context[:1], alone, atol=torch.finfo(dtype).eps)
    assert context[1].eq(0).all()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gives_what_float64_gives_to_its_own_precision(score, dtype):
    exact = [heads(QUERIES, dtype), heads(KEYS, dtype), heads(KEYS, dtype)]
    score, mask = SCORES[score](HEADS, SIZE).to(dtype), MASKS["padding"]
    context = attend(*exact, mask, score, soft)
    expected = attend(*(tensor.double() for tensor in exact), mask, score.double(), soft)
    assert (context.double() - expected).abs().max() < 16 * torch.finfo(dtype).eps


@pytest.mark.parametrize("padded", [False, True])
def test_torch_multihead_attention_with_the_same_weights_gives_the_same(padded):
    ours, theirs = make(), nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True).double().eval()
    projections = ours.query, ours.key, ours.value
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([projection.weight for projection in projections]))
        theirs.in_proj_bias.copy_(torch.cat([projection.bias for projection in projections]))
        theirs.out_proj.load_state_dict(ours.output.state_dict())
    hidden = torch.randn(BATCH, QUERIES, HIDDEN).double().requires_grad_()
    memory = torch.randn(BATCH, KEYS, HIDDEN).double().requires_grad_()
    mask = MASKS["padding"] if padded else None
    context, weights = theirs(
        hidden, memory, memory, key_padding_mask=~mask[:, 0, 0] if padded else None, average_attn_weights=False
    )
    assert torch.allclose(ours(hidden, memory, mask), context, atol=1e-12)
    assert torch.allclose(ours.attention_map(hidden, memory, mask), weights, atol=1e-12)
    upstream = torch.randn_like(context)
    given = torch.autograd.grad(ours(hidden, memory, mask), (hidden, memory), upstream)
    expected = torch.autograd.grad(context, (hidden, memory), upstream)
    assert all(torch.allclose(one, other, atol=1e-12) for one, other in zip(given, expected, strict=True))


@parts
@every_mask
def test_the_attention_map_sums_to_one_where_anything_is_seen_and_reproduces_forward(score, weights, mask):
    attention = make(score, weights)
    hidden, memory = torch.randn(BATCH, QUERIES, HIDDEN).double(), torch.randn(BATCH, KEYS, HIDDEN).double()
    attention_map = attention.attention_map(hidden, memory, mask)
    allowed = torch.ones(1, dtype=torch.bool) if mask is None else mask
    allowed = allowed.expand(BATCH, HEADS, QUERIES, KEYS)
    assert torch.allclose(attention_map.sum(-1), allowed.any(-1).double(), atol=1e-12)
    assert attention_map[~allowed].eq(0).all()
    value = attention.value(memory).view(BATCH, KEYS, HEADS, SIZE)
    context = torch.einsum("bhqk,bkhd->bqhd", attention_map, value).reshape(BATCH, QUERIES, HIDDEN)
    assert torch.allclose(attention(hidden, memory, mask), attention.output(context), atol=1e-12)


@parts
def test_without_positions_attention_follows_a_permutation_of_tokens(score, weights):
    attention, order = make(score, weights), torch.randperm(KEYS)
    hidden = torch.randn(BATCH, KEYS, HIDDEN).double()
    assert torch.allclose(attention(hidden[:, order]), attention(hidden)[:, order], atol=1e-12)


@parts
def test_the_order_of_what_is_looked_at_does_not_matter(score, weights):
    attention, order = make(score, weights), torch.randperm(KEYS)
    hidden, memory = torch.randn(BATCH, QUERIES, HIDDEN).double(), torch.randn(BATCH, KEYS, HIDDEN).double()
    mask = MASKS["each head its own"]
    shuffled = attention(hidden, memory[:, order], mask[..., order])
    assert torch.allclose(shuffled, attention(hidden, memory, mask), atol=1e-12)


@parts
def test_packed_sequences_do_not_see_each_other(score, weights):
    attention, lengths = make(score, weights), [2, 5, 3]
    hidden = torch.randn(1, 11, HIDDEN).double()
    numbers = torch.tensor([[1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 0]])
    together = attention(hidden, mask=masks.packed(numbers))
    alone = torch.cat([attention(part) for part in hidden[:, :10].split(lengths, dim=1)], dim=1)
    assert torch.allclose(together[:, :10], alone, atol=1e-12)


@parts
def test_keys_in_front_of_those_that_the_mask_speaks_of_are_seen_by_all(score, weights):
    score, mask = SCORES[score](HEADS, SIZE).double(), MASKS["padding"]
    prefix, query, key, value = heads(2), heads(QUERIES), heads(KEYS), heads(KEYS)
    key, value = torch.cat([prefix, key], dim=2), torch.cat([prefix, value], dim=2)
    wide = torch.cat([torch.ones(BATCH, 1, 1, 2, dtype=torch.bool), mask], dim=-1)
    given = attend(query, key, value, mask, score, WEIGHTS[weights])
    assert torch.allclose(given, attend(query, key, value, wide, score, WEIGHTS[weights]), atol=1e-12)


@pytest.mark.parametrize("score", ["scaled_dot", "cosine"])
def test_dropout_acts_on_weights_in_training_only_and_keeps_their_mean(score):
    attention = make(score, dropout=0.5)
    hidden = torch.randn(1, 3, HIDDEN).double()
    undropped = attention(hidden)
    draws = attention.train()(hidden.expand(5003, -1, -1))
    error = draws.std(0) / math.sqrt(len(draws))
    assert draws.std(0).min() > 0
    assert ((draws.mean(0) - undropped[0]).abs() < 5 * error).all()


def test_heads_that_do_not_divide_the_hidden_size_are_refused():
    with pytest.raises(ValueError, match="3 heads do not divide a hidden size of 10"):
        MultiHeadAttention(10, 3)


def test_query_key_and_value_in_one_product_are_what_a_listener_at_their_seams_sees():
    torch.manual_seed(0)
    attention, hidden = MultiHeadAttention(12, 3).double(), torch.randn(2, 7, 12).double().requires_grad_()
    wanted = torch.tensor([13, 0, 5])
    together = attention(hidden, places=wanted)
    found = torch.autograd.grad(together.square().sum(), (hidden, *attention.parameters()))
    seen = []
    for name in ("query", "key", "value"):
        attention.get_submodule(name).register_forward_hook(lambda module, given, made: seen.append(made.shape))
    apart = attention(hidden).flatten(0, 1)[wanted]
    assert seen == [(2, 7, 12)] * 3
    assert torch.allclose(together, apart, atol=1e-12)
    expected = torch.autograd.grad(apart.square().sum(), (hidden, *attention.parameters()))
    assert all(torch.allclose(one, other, atol=1e-12) for one, other in zip(found, expected, strict=True))
