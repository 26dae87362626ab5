"""From a corpus to masked batches: how many tokens a second, in one process on one core, and how full are the rows?"""

import time
from collections.abc import Callable, Mapping
from itertools import chain, islice, repeat
from statistics import median
from typing import Any

from parts.table import Row
from torch.utils.data import DataLoader

from minibert.data.batches import Cursor, PretrainingBatches, Request
from minibert.data.blocks import SentenceStore
from minibert.data.masking import MaskingSettings
from minibert.data.pairs import PairSettings
from minibert.data.tokenizer import Vocabulary

TOKENS = 32_768
"""Places in a batch: 256 rows of 128 tokens."""

Contender = Callable[[int], int]
"""Makes the batches of a turn, and says how many real tokens they hold."""


def race(contenders: Mapping[str, Contender], *, turns: int) -> dict[str, float]:
    """Tokens a second of each, the median over turns in which one comes after another."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns):
        for name, work in contenders.items():
            start = time.perf_counter()
            tokens = work(turn)
            found[name].append(tokens / (time.perf_counter() - start))
    return {name: median(rates) for name, rates in found.items()}


def speeds(corpus: SentenceStore, vocabulary: Vocabulary, chunks: Any, tokenizer: Any, *, length: int) -> list[Row]:
    """Masked language modelling in all ways of ours, beside that of the peer."""
    pairs, one_text = PairSettings(max_length=length), PairSettings(max_length=length, objective="none")
    ours = {
        "single tokens, next sentence": (pairs, MaskingSettings()),
        "single tokens, no pairs": (one_text, MaskingSettings()),
        "whole words, next sentence": (pairs, MaskingSettings(unit="word")),
        "spans, next sentence": (pairs, MaskingSettings(unit="span")),
    }
    contenders = {name: packed(corpus, vocabulary, *settings) for name, settings in ours.items()}
    rates = race({**contenders, "peer": collated(chunks, tokenizer, length)}, turns=7)
    peer = {"single tokens, no pairs": f"{rates['peer'] / 1e6:.2f}"}
    text = f"batches of {length} tokens a row, million tokens a second:"
    return [Row(f"{text} {name}", f"{rates[name] / 1e6:.2f}", peer.get(name, "")) for name in ours]


def packed(corpus: SentenceStore, vocabulary: Vocabulary, pairs: PairSettings, masking: MaskingSettings) -> Contender:
    """The batches of one block a turn, planned then; the last one reaches into the next block."""
    batches = PretrainingBatches(corpus, vocabulary, seed=1, pairs=pairs, masking=masking)
    rows = TOKENS // pairs.max_length

    def work(turn: int) -> int:
        cursor, tokens = Cursor(turn), 0
        while cursor.block == turn:
            request = Request(0, cursor, rows, pairs.max_length, masking.probability)
            cursor, more = batches.advance(cursor, rows, pairs.max_length)
            batches.micro_batches(request)
            tokens += more
        return tokens

    return work


def collated(chunks: Any, tokenizer: Any, length: int, *, batches: int = 16) -> Contender:
    """The same of transformers: shuffled chunks, as its Trainer takes them, through its collator."""
    from transformers import DataCollatorForLanguageModeling

    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    loader = DataLoader(chunks, batch_size=TOKENS // length, shuffle=True, num_workers=0, collate_fn=collator)
    endless = chain.from_iterable(repeat(loader))  # to shuffle takes time once in an epoch, not in each turn
    return lambda turn: sum(int(batch["attention_mask"].sum()) for batch in islice(endless, batches))


def fill(corpus: SentenceStore, vocabulary: Vocabulary, *, length: int, packed: bool) -> float:
    """The share of real tokens in the batches of the first block."""
    pairs = PairSettings(max_length=length, packed=packed)
    batches = PretrainingBatches(corpus, vocabulary, seed=1, pairs=pairs)
    rows, cursor = TOKENS // length, Cursor()
    real = places = 0
    while cursor.block == 0:
        for batch in batches.micro_batches(Request(0, cursor, rows, length, 0.15)):
            real += int(batch["attention_mask"].sum())
            places += batch["attention_mask"].numel()
        cursor, _ = batches.advance(cursor, rows, length)
    return real / places
