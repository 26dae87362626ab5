"""Near copies against a slow loop over sets of words, and what must and must not be one."""

import itertools
import string

import numpy as np
import pytest
from tokenizers import Tokenizer

from minibert.data import near_copies
from minibert.data.encoding import Encoder
from minibert.data.folding import Folding
from minibert.data.near_copies import SHINGLE, ShingleTable
from minibert.data.random import generator
from minibert.data.token_store import TokenStore
from minibert.data.tokenizer import train_tokenizer

HELD_OUT = (
    "In the spring of that year, the river rose above its banks; nobody in the valley had seen such water before. "
    "They carried the old books, one by one, to the upper floor of the mill."
)
FIRST, SECOND = HELD_OUT.split(". ")
OTHER = (
    "Nobody in the valley had seen such a feast. It was winter by now and the mill stood empty, so the miller sold his "
    "three horses, his cart and the last of the flour, and went to sea with a cousin who owned a boat."
)


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    texts = [HELD_OUT, OTHER, HELD_OUT.upper(), HELD_OUT.replace("e", "\u00e9"), "!- ! -"]
    return train_tokenizer(texts, vocab_size=131 if request.param else 199, lowercase=request.param)


def find_near_copies(tokenizer: Tokenizer, held_out: list[str], training: list[str]) -> list[bool]:
    table = ShingleTable.of(store_of(tokenizer, held_out), Folding.of(tokenizer))
    store = store_of(tokenizer, training)
    lengths = np.diff(store.sentence_offsets[store.document_offsets])
    return table.near_copies(store.tokens(0, int(store.sentence_offsets[-1])), lengths).tolist()


def store_of(tokenizer: Tokenizer, texts: list[str]) -> TokenStore:
    encoded = Encoder(tokenizer, language="en").encode(texts)
    document_offsets, sentence_offsets = (
        np.cumsum([0, *counts]) for counts in (encoded.sentence_counts, encoded.token_counts)
    )
    return TokenStore(document_offsets, sentence_offsets, None, (encoded.tokens,), (0,))


@pytest.mark.parametrize(
    "text",
    [
        HELD_OUT,
        HELD_OUT.replace("river", "stream"),
        HELD_OUT.upper(),
        HELD_OUT.replace(";", " -").replace(",", "").replace(".", "!!"),
        HELD_OUT.replace("e", "\u00e9"),
        "\n".join(HELD_OUT.split(" ")),
        f"{OTHER} {OTHER[::-1]} {HELD_OUT} {OTHER}",
        SECOND,
        HELD_OUT[30:-20],
    ],
    ids=["same", "word", "case", "punctuation", "accents", "lines", "inside", "part", "cut"],
)
def test_a_held_out_text_is_found_behind_small_changes(tokenizer: Tokenizer, text: str) -> None:
    assert find_near_copies(tokenizer, [OTHER, HELD_OUT], ["Something else.", text]) == [False, True]


@pytest.mark.parametrize(
    "text",
    [
        OTHER,
        "In the spring of that year, the crops failed, and two families left for the coast before the first frost.",
        " ".join(reversed(HELD_OUT.split(" "))),
        "The river rose.",
    ],
    ids=["phrase", "beginning", "words", "short"],
)
def test_a_text_that_shares_a_phrase_or_its_words_is_no_copy(tokenizer: Tokenizer, text: str) -> None:
    assert find_near_copies(tokenizer, [HELD_OUT], [text]) == [False]


def test_texts_shorter_than_a_shingle_are_compared_as_wholes(tokenizer: Tokenizer) -> None:
    training = ["the river rose", "The river, rose! 河", "the river", "river the rose", "the river rose above", "!河!"]
    copies = find_near_copies(tokenizer, ["The river rose.", "... 河", HELD_OUT], training)
    assert copies == [True, True, False, False, False, False]


@pytest.mark.parametrize(("tokens_at_once", "products"), [(1 << 17, 1 << 24), (37, 1 << 24), (1 << 17, 11)])
def test_near_copies_are_those_of_a_loop_over_sets_of_words(
    monkeypatch: pytest.MonkeyPatch, tokens_at_once: int, products: int
) -> None:
    monkeypatch.setattr(near_copies, "TOKENS_AT_ONCE", tokens_at_once)
    monkeypatch.setattr(near_copies, "_MOST_PRODUCTS", products)
    rng = generator(7, 5)
    words = ["".join(rng.choice(list(string.ascii_lowercase[:5]), size=rng.integers(1, 7))) for _ in range(19)]
    blocks = [[str(word) for word in rng.choice(words, size=rng.integers(1, 9))] for _ in range(23)]
    texts = [
        " ".join(itertools.chain(*(blocks[i] for i in rng.integers(23, size=rng.integers(1, 7))))) for _ in range(199)
    ]
    tokenizer = train_tokenizer(texts, vocab_size=61)
    expected = [any(shares_half(text, other) for other in texts[:31]) for text in texts[31:]]
    assert 0.2 < np.mean(expected) < 0.8
    assert find_near_copies(tokenizer, texts[:31], texts[31:]) == expected


def shares_half(one: str, other: str) -> bool:
    a, b = shingles(one.split(" ")), shingles(other.split(" "))
    return 2 * len(a & b) >= min(len(a), len(b))


def shingles(words: list[str]) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + SHINGLE]) for i in range(max(len(words) - SHINGLE + 1, 1))}


def test_of_very_long_held_out_texts_a_sample_of_shingles_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = generator(7, 6)
    long, other = (" ".join(f"{word:x}" for word in rng.integers(1 << 20, size=7001)) for _ in range(2))
    tokenizer = train_tokenizer(
        [" ".join(f"{a}{b}" for a in "0123456789abcdef" for b in "0123456789abcdef")], vocab_size=37
    )
    monkeypatch.setattr(near_copies, "MOST_SHINGLES", 1009)
    words = long.split(" ")
    part = " ".join(words[1000:2500])
    mixed = " ".join(words[:1000] + other.split(" ")[:3000])
    assert len(ShingleTable.of(store_of(tokenizer, [long]), Folding.of(tokenizer)).hashes) < 1009
    assert find_near_copies(tokenizer, [long], [long, other, part, mixed]) == [True, False, True, False]


def test_nothing_is_a_near_copy_where_nothing_is_held_out(tokenizer: Tokenizer) -> None:
    assert find_near_copies(tokenizer, [], [HELD_OUT]) == [False]
