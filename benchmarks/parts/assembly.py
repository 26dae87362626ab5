"""From a corpus to masked batches: how many tokens a second, in one process on one core, and how full are the rows?"""

from itertools import chain, count, islice, repeat
from statistics import median
from typing import Any

from parts.table import Row
from parts.turns import Contender, in_turns
from torch.utils.data import DataLoader

from minibert.data.batches import Cursor, PretrainingBatches, Request
from minibert.data.blocks import SentenceStore
from minibert.data.masking import MaskingSettings
from minibert.data.pairs import PairSettings
from minibert.data.tokenizer import Vocabulary

TOKENS = 32_768
"""Places in a batch: 256 rows of 128 tokens."""


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
    rates = in_turns({**contenders, "peer": collated(chunks, tokenizer, length)}, rounds=7)
    speed = {name: f"{median(found) / 1e6:.2f}" for name, found in rates.items()}
    peer = {"single tokens, no pairs": speed["peer"]}
    text = f"batches of {length} tokens a row, million tokens a second:"
    return [Row(f"{text} {name}", speed[name], peer.get(name, "")) for name in ours]


def packed(corpus: SentenceStore, vocabulary: Vocabulary, pairs: PairSettings, masking: MaskingSettings) -> Contender:
    """The batches of one block a turn, planned then; the last one reaches into the next block."""
    batches = PretrainingBatches(corpus, vocabulary, seed=1, pairs=pairs, masking=masking)
    rows, blocks = TOKENS // pairs.max_length, count()

    def work() -> int:
        block, tokens = next(blocks), 0
        cursor = Cursor(block)
        while cursor.block == block:
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
    return lambda: sum(int(batch["attention_mask"].sum()) for batch in islice(endless, batches))


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
