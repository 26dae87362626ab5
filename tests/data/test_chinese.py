"""Words of Chinese text: cuts that are known, a slow loop over real and odd sentences, and masks that keep to them."""

import gzip
import importlib.util
import json
import sys
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from minibert.data.chinese import mark_words, word_cutter
from minibert.data.masking import MaskingSettings, mask_tokens
from minibert.data.sentences import split_sentences
from minibert.data.tokenizer import Vocabulary, load_tokenizer
from minibert.errors import UserError

needs_rjieba = pytest.mark.skipif(
    importlib.util.find_spec("rjieba") is None, reason="needs rjieba (the extra zh), which is not installed"
)

LATIN = "abcdefghijklmnopqrstuvwxyz0123456789"
TRICKY = "使用语言模型我来到北京清华大学中国共产党了个，。Cab13.+%é\u3000 \t\x00\u200b👨\u200d👩한カ"
texts = st.text(st.one_of(st.sampled_from(TRICKY), st.characters(exclude_categories=["Cs"])), max_size=40)


def character_tokenizer() -> Tokenizer:
    """Knows single characters alone, and not all of those."""
    pieces = ["[UNK]", *LATIN, *("##" + letter for letter in LATIN), *"使用语言模型我来到北京清华大学年月很好，。+"]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


TOKENIZER = character_tokenizer()


def encode(lines, tokenizer=TOKENIZER):
    return list(zip(lines, tokenizer.encode_batch(lines, add_special_tokens=False), strict=True))


def words(line: str) -> list[str]:
    """The text of the tokens that belong together."""
    (sentence,) = encode([line])
    spans: list[list[int]] = []
    for (begin, end), continues in zip(sentence[1].offsets, mark_words([sentence]), strict=True):
        if continues:
            spans[-1][1] = end
        else:
            spans.append([begin, end])
    return [line[begin:end] for begin, end in spans]


def mark_slowly(sentences):
    """Token by token, with the places of the words as rjieba itself counts them."""
    import rjieba

    marks = []
    for text, encoding in sentences:
        places = rjieba.tokenize(text)
        before = None
        for (begin, _), token in zip(encoding.offsets, encoding.tokens, strict=True):
            word = next(place for place in places if place[1] <= begin < place[2])
            marks.append(word == before or token.startswith("##"))
            before = word
    return marks


@needs_rjieba
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("使用语言模型 to pretrain", ["使用", "语言", "模型", "to", "pretrain"]),
        ("我来到北京清华大学。", ["我", "来到", "北京", "清华大学", "。"]),
        ("1998年1月，C++很好", ["1998", "年", "1", "月", "，", "C++", "很", "好"]),
        ("3.14 语言 模型", ["3.14", "语言", "模型"]),
        ("naïveté模型", ["naïveté", "模型"]),  # pieces are a word although rjieba cuts at the accents
        ("", []),
        ("\u200b \t", []),
    ],
)
def test_tokens_of_a_word_belong_together(line, expected):
    assert words(line) == expected


@needs_rjieba
@settings(max_examples=300, deadline=None)
@given(st.lists(texts, max_size=5))
def test_odd_text_is_marked_as_a_slow_loop_marks_it(lines):
    sentences = encode(lines)
    assert mark_words(sentences).tolist() == mark_slowly(sentences)
    assert ["".join(word_cutter()(line)) for line in lines] == lines


@needs_rjieba
def test_real_sentences_are_marked_as_a_slow_loop_marks_them(shared, tmp_path):
    vocab = (shared / "models" / "vocab" / "bert-base-chinese.txt").read_bytes()
    (tmp_path / "vocab.txt").write_bytes(vocab)
    with gzip.open(shared / "text" / "chinese.jsonl.gz", "rt", encoding="utf-8") as file:
        documents = [json.loads(line)["text"] for line in islice(file, 0, 5000, 500)]
    lines = [sentence for text in documents for sentence in split_sentences(text, "zh")]
    sentences = encode(lines, load_tokenizer(tmp_path))
    marks = mark_words(sentences)
    assert marks.tolist() == mark_slowly(sentences)
    assert 0.25 < marks.mean() < 0.6


@needs_rjieba
def test_masks_hide_chinese_words_whole():
    text = "我来到北京清华大学。"
    (sentence,) = encode([text])
    size = TOKENIZER.get_vocab_size()
    vocabulary = Vocabulary(
        size=size, pad=0, unk=0, cls=0, sep=0, mask=0, special=np.arange(size) == 0, continuation=np.zeros(size, bool)
    )
    ids = np.tile(sentence[1].ids, (701, 1))
    continues = np.tile(mark_words([sentence]), (701, 1))
    draws = np.random.default_rng(0).random((3, *ids.shape))
    _, labels = mask_tokens(ids, np.ones_like(ids), continues, draws, vocabulary, MaskingSettings(unit="word"), 0.4)
    hidden = {"".join(np.array(list(text))[row]) for row in labels != -100}
    assert hidden == {"清华大学", "来到北京", "我来到。", "我北京。"}


def test_where_rjieba_is_absent_the_user_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rjieba", None)
    with pytest.raises(UserError, match="pip install rjieba"):
        word_cutter()
    with pytest.raises(UserError, match="pip install rjieba"):
        mark_words(encode(["我"]))
