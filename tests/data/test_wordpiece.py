"""The trainer against an example by hand, a slow recount of all pairs, and BERT's own rules for words."""

import unicodedata
import warnings
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from minibert.data.random import generator
from minibert.data.wordpiece import count_words, learn_pieces

BERT = {"normalizer": normalizers.BertNormalizer(), "pre_tokenizer": pre_tokenizers.BertPreTokenizer()}

# Letters of several scripts, with all that splits, joins, vanishes, composes or decomposes around them.
TRICKY = (
    "ab AB'-.$^`~ßİıΣσςéÅñ\u0301\u0323\u0308\u0345\ufe0f 博推，。\u3000\uf900\U00020000カガ\u3099한\u1112\u1161\u11ab"
    "１２\t\n\r\x00\x0b\x0c\x1c\x1f\x7f\x85\xa0\xad\u200b\u200d\u2028\u2029\ufeff\ufffd😀👨\u0e01\u0e33\u0600–“”¿"
)
texts = st.text(st.one_of(st.sampled_from(TRICKY), st.characters(exclude_categories=["Cs"])), max_size=40)


def words_directly(text: str, normalizer: normalizers.Normalizer) -> Counter[str]:
    words = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normalizer.normalize_str(text))
    return Counter(word for word, _ in words if len(word) <= 100)


def learn_slowly(counts: dict[str, int], size: int, min_frequency: int) -> list[str]:
    """The same rule with nothing remembered: all pairs are counted again after each merge."""
    words = [([word[0], *("##" + character for character in word[1:])], count) for word, count in counts.items()]
    pieces = sorted({piece for word, _ in words for piece in word})
    while len(pieces) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words:
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs or max(pairs.values()) < min_frequency:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merged = best[0] + best[1][2:]
        for word, _ in words:
            for at in range(len(word)):
                if tuple(word[at : at + 2]) == best:
                    word[at : at + 2] = [merged]
        if merged not in pieces:
            pieces.append(merged)
    return pieces


def test_the_example_of_the_docstring_comes_out_as_written_there():
    pieces = learn_pieces({"hug": 10, "hugs": 5}, size=6)
    assert pieces == ["##g", "##s", "##u", "h", "##ug", "hug"]
    assert learn_pieces({"hug": 10, "hugs": 5}, size=99) == [*pieces, "hugs"]


def test_of_equally_frequent_pairs_the_first_by_its_strings_is_merged():
    assert learn_pieces({"cd": 3, "ab": 3, "ef": 4}, size=99)[-3:] == ["ef", "ab", "cd"]


def test_pairs_rarer_than_the_minimum_are_not_merged():
    assert learn_pieces({"ab": 4, "cd": 5}, size=99, min_frequency=5) == ["##b", "##d", "a", "c", "cd"]


def test_overlapping_pairs_are_merged_from_the_left():
    # a ##a ##a ##a ##a: ##a ##a is seen three times; it is merged twice.
    assert learn_pieces({"aaaaa": 2}, size=5) == ["##a", "a", "##aa", "##aaaa", "aaaaa"]


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=9), st.integers(1, 7), min_size=1, max_size=23),
    st.integers(7, 41),
    st.integers(1, 5),
)
def test_the_pieces_are_those_of_a_slow_recount_of_all_pairs(counts, size, min_frequency):
    assert learn_pieces(counts, size=size, min_frequency=min_frequency) == learn_slowly(counts, size, min_frequency)


@settings(max_examples=500, deadline=None)
@given(st.lists(texts, max_size=5), st.booleans(), st.sampled_from([None, True, False]))
def test_words_are_counted_as_if_each_text_were_normalized_whole(several, lowercase, strip_accents):
    normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    counted = count_words(iter(several), normalizer=normalizer, pre_tokenizer=pre_tokenizers.BertPreTokenizer())
    assert counted == sum((words_directly(text, normalizer) for text in several), Counter())


@pytest.mark.parametrize("strip_accents", [True, False])
def test_each_character_beside_a_space_a_dot_or_a_han_character_is_counted_as_if_normalized_whole(strip_accents):
    """The claim behind the chunks, for all of Unicode but the large blocks of Han, Hangul and private characters."""
    normalizer = normalizers.BertNormalizer(strip_accents=strip_accents)
    blocks = [
        range(0x3500),
        range(0xA000, 0xAC10),
        range(0xD7A0, 0xD800),
        range(0xF800, 0x17100),
        range(0x1AFF0, 0x20010),
    ]
    characters = [chr(code) for block in blocks for code in block if unicodedata.category(chr(code)) != "Cn"]
    text = "".join(f" {character}.{character}博{character} e{character}" for character in characters)
    counted = count_words([text], normalizer=normalizer, pre_tokenizer=pre_tokenizers.BertPreTokenizer())
    assert counted == words_directly(text, normalizer)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text("abcd", min_size=1, max_size=7), min_size=1, max_size=31), st.randoms(use_true_random=False))
def test_the_order_and_the_cuts_of_the_texts_make_no_difference(words, random):
    shuffled = random.sample(words, len(words))
    cut = random.randrange(len(words) + 1)
    one, other = ([" ".join(words)], ["\n".join(shuffled[:cut]), "\t".join(shuffled[cut:])])
    assert learn_pieces(count_words(one, **BERT), size=31) == learn_pieces(count_words(other, **BERT), size=31)


def test_words_over_100_characters_which_bert_cannot_split_are_not_learned_from():
    assert count_words(["a" * 100, "b" * 101], **BERT) == {"a" * 100: 1}


def test_an_alphabet_without_room_keeps_the_most_frequent_characters_and_says_what_is_lost():
    counts = {"一": 5, "丁": 3, "七": 3, "万": 2}
    with pytest.warns(
        UserWarning, match=r"room for 2 of 4 characters: 2 fall to \[UNK\], and with them 38.46% of the words"
    ):
        assert learn_pieces(counts, size=2) == ["一", "丁"]
    with pytest.warns(UserWarning, match="room for 3 of 4"):
        assert learn_pieces(counts, size=99, limit_alphabet=3) == ["一", "丁", "七"]


def test_a_word_with_a_lost_character_is_not_merged_across_the_gap():
    with pytest.warns(UserWarning, match="1 fall to"):
        pieces = learn_pieces({"azb": 6, "cb": 7}, size=99, limit_alphabet=3)
    assert pieces == ["##b", "##z", "c", "cb"]


def test_all_characters_are_kept_without_a_warning_where_there_is_room():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert learn_pieces({"ab": 1}, size=2) == ["##b", "a"]


def test_a_text_takes_as_many_pieces_as_with_the_library_s_trainer():
    """Random words of a few syllables, their frequencies by Zipf's law; half of the texts are held out."""
    random = generator(2, 7)
    syllables = np.array([a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in ("", "n", "r", "s")])
    lexicon = ["".join(random.choice(syllables, size)) for size in random.integers(1, 5, 4_001)]
    weights = 1 / np.arange(1, len(lexicon) + 1)
    drawn = random.choice(lexicon, (2, 30_011), p=weights / weights.sum())
    learned, held_out = (" ".join(words) for words in drawn)
    ours = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    ours.model = models.WordPiece(
        {piece: n for n, piece in enumerate(["[UNK]", *learn_pieces(count_words([learned], **BERT), size=1_000)])},
        unk_token="[UNK]",
    )
    theirs = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    for tokenizer in (ours, theirs):
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    theirs.train_from_iterator(
        [learned],
        trainers.WordPieceTrainer(vocab_size=1_001, min_frequency=2, special_tokens=["[UNK]"], show_progress=False),
    )
    lengths = [len(tokenizer.encode(held_out).ids) for tokenizer in (ours, theirs)]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.01)
