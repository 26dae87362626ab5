"""The model at work: words that it puts for a mask, and who looks at whom."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from minibert.data.tokenizer import vocabulary
from minibert.inference import Candidate, attention_maps, encode_with_masks, fill_mask, load_language_model
from minibert.model import BertForMaskedLM

SENTENCES = (
    "This is one of the [MASK] movies I have ever seen.",
    "The acting was [MASK] and the plot made no sense.",
    "The film is [MASK] by a young director.",
    "She was an American [MASK] and singer.",
    "The river flows [MASK] the sea.",
    "Paris is the capital of [MASK].",
)
"""Sentences about what the open corpora of the demo speak of, films and everything in an encyclopaedia."""

PAIR = ("The film was very long.", "I left before it was over.")


class Attention(NamedTuple):
    """One head of the model on a pair of sentences, layer and head counted from 1; rows: a token and its weights."""

    layer: int
    head: int
    heads: int
    pair: tuple[str, str]
    tokens: list[str]
    rows: list[tuple[str, list[float]]]
    strongest: float


class Examples(NamedTuple):
    """Sentences with the candidates for each of their masks, the largest probability, and one attention map."""

    masks: list[tuple[str, list[list[Candidate]]]]
    longest: float
    attention: Attention


def examples(checkpoint: Path, sentences: Sequence[str]) -> Examples:
    """What the model of a checkpoint makes of the sentences; those with characters unknown to it are left out."""
    model, tokenizer = load_language_model(checkpoint)
    known = [sentence for sentence in sentences if _is_known(tokenizer, sentence)]
    masks = [(sentence, fill_mask(model, tokenizer, sentence)) for sentence in known]
    longest = max((word.probability for _, found in masks for words in found for word in words), default=1.0)
    return Examples(masks, longest, _attention(model, tokenizer))


def sharpest(maps: Tensor, is_word: Tensor) -> tuple[int, int]:
    """Layer and head with the largest mean, over words, of the largest weight on a word: maps [layers, heads, L, L]."""
    strongest = maps[:, :, is_word][..., is_word].amax(-1).mean(-1)  # [layers, heads]
    layer, head = divmod(int(strongest.argmax()), maps.size(1))
    return layer, head


def _attention(model: BertForMaskedLM, tokenizer: Tokenizer) -> Attention:
    encoding = tokenizer.encode(*PAIR)
    inputs = {"token_type_ids": torch.tensor([encoding.type_ids])} if model.config.type_vocab_size > 1 else {}
    maps = attention_maps(model, torch.tensor([encoding.ids]), **inputs)[:, 0]  # [layers, heads, L, L]
    layer, head = sharpest(maps, ~torch.tensor(encoding.special_tokens_mask, dtype=torch.bool))
    weights, heads, tokens = maps[layer, head], maps.size(0) * maps.size(1), encoding.tokens
    rows = list(zip(tokens, weights.tolist(), strict=True))
    return Attention(layer + 1, head + 1, heads, PAIR, tokens, rows, float(weights.max()))


def _is_known(tokenizer: Tokenizer, sentence: str) -> bool:
    return vocabulary(tokenizer).unk not in encode_with_masks(tokenizer, sentence)
