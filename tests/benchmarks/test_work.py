"""Is the needed work counted as one counts it by hand, and as torch counts what a model does?"""

import time

import torch
from parts.shapes import Shape
from parts.work import Reading, attention_share, best_rate, needed

TINY = Shape(layers=2, hidden=3, vocabulary=11)


def test_one_sequence_counted_by_hand():
    # 5 tokens, of which 2 are masked; [CLS] is read too. H = 3, I = 12, V = 11.
    first = 4 * 5 * 9 + 2 * 5 * 5 * 3 + 2 * 5 * 3 * 12  # q k v output; scores and context; up and down
    last = 2 * 5 * 9 + 2 * 3 * 9 + 2 * 3 * 5 * 3 + 2 * 3 * 3 * 12  # k v for 5 tokens, all else for 3
    head, pooler = 2 * (9 + 3 * 11), 9 + 3 * 2
    assert needed(TINY, [Reading(5, 2)]) == 6 * (first + last + head + pooler)


def test_sequences_do_not_look_at_each_other():
    parts = [Reading(5, 2), Reading(7, 0), Reading(13, 3)]
    assert needed(TINY, parts) == sum(needed(TINY, [part]) for part in parts)
    assert needed(TINY, parts) < needed(TINY, [Reading(25, 5)])


def test_attention_is_what_the_square_of_the_length_adds():
    parts = [Reading(5, 2), Reading(13, 3)]
    attention = 6 * 2 * 3 * (5 * 5 + 13 * 13 + 5 * 3 + 13 * 4)  # two layers, the second for 3 and 4 tokens
    assert attention_share(TINY, parts) == attention / needed(TINY, parts)


def test_the_best_rate_is_that_of_a_product_large_enough():
    seconds, _ = min((timed(1024), number) for number in range(5))
    assert best_rate(TINY, 7, 2, dtype=torch.float32, device="cpu") > 0.5 * 2 * 1024**3 / seconds


def timed(size: int) -> float:
    left, right = torch.randn(2, size, size)
    start = time.perf_counter()
    left @ right
    return time.perf_counter() - start
