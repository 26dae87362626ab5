"""Which documents a tokenizer is trained on, against all levels counted by hand; never a matter of order."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.data import sample
from minibert.data.sample import LEVELS, Sample, SampleTask, count_part
from minibert.data.splits import hash_document
from minibert.data.wordpiece import count_chunks
from minibert.errors import UserError


def take(texts: Sequence[str], characters: int, parts: int) -> Sample:
    taken = Sample(characters)
    for begin in range(0, len(texts), parts):
        taken.add(count_part(SampleTask(texts[begin : begin + parts], taken.lowest)))
    return taken


def level(text: str) -> int:
    bits = f"{hash_document(text):064b}"
    return min(len(bits) - len(bits.rstrip("0")), LEVELS - 1)


def wanted(texts: Sequence[str], characters: int) -> Counter[str]:
    """The first sample that is small enough, or that nothing could be left out of."""
    for lowest in range(LEVELS):
        chosen = [text for text in texts if level(text) >= lowest]
        if sum(map(len, chosen)) <= characters or all(level(text) == lowest for text in chosen):
            return count_chunks(chosen)
    raise AssertionError


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(0, 10**6), min_size=2, max_size=60, unique=True),
    st.integers(1, 900),
    st.randoms(use_true_random=False),
)
def test_a_sample_is_of_the_asked_size_and_the_same_in_any_order_and_portions(numbers, characters, random):
    texts = [f"number {number} and half of it {number // 2}" for number in numbers]
    first = take(texts, characters, 7).chunks()
    random.shuffle(texts)
    assert take(texts, characters, random.randint(1, 50)).chunks() == first == wanted(texts, characters)


def test_a_text_of_ever_new_words_is_sampled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "MOST_CHUNKS", 101)
    texts = [f"x{number:x} y{number:o}" for number in range(997)]
    taken = take(texts, 10**6, 13)
    assert 10 < len(taken.chunks()) <= 101
    assert taken.chunks() == take(texts[::-1], 10**6, 29).chunks()
    assert taken.documents == 997


@pytest.mark.parametrize(
    ("texts", "message"),
    [([], "no words"), (["!", "\u200d"], "no words"), (["One.", "!", "One."], "one document only")],
)
def test_a_text_without_two_different_documents_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        take(texts, 100, 2).chunks()
