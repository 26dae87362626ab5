"""What is looked up run by run against the tokenizer itself, sentence by sentence."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from minibert.data import encoding
from minibert.data.encoding import Encoder, RunTable, ends_words_at_runs
from minibert.data.sentences import split_sentences
from minibert.data.tokenizer import train_tokenizer

TEXTS = [
    "The café (near 天气) sold Möbel; don't ask... 12,345.67 times! \ud7a3\u1112\u1161 ß ſ ﬁ İ ≠ ‼ a\u0301\u0338b"
] * 3
AWKWARD = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from(" \t\r.,!'-[]天气很好abcABCéÉİß\u0301\u0338\u200d\u00ad\x00\x0b\x1c\x85\u2028\u3000≠ΣσÅ가각"),
    ),
    max_size=30,
)


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(TEXTS, vocab_size=211, lowercase=request.param)


@settings(deadline=None, max_examples=300)
@given(st.lists(AWKWARD.map(lambda text: text.replace("\n", " ")), max_size=7))
def test_sentences_have_the_ids_that_the_tokenizer_gives_them(tokenizer: Tokenizer, sentences: list[str]) -> None:
    expected = [e.ids for e in tokenizer.encode_batch(sentences, add_special_tokens=False)]
    table = RunTable(tokenizer)
    for _ in range(2):  # the second time all runs are known
        ids, counts = table.encode(sentences)
        assert [part.tolist() for part in np.split(ids, np.cumsum(counts))[:-1]] == expected


def test_documents_are_the_same_whatever_is_encoded_at_once_or_forgotten(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["One. Two two!\nThree.", "\u200d", "Four\n\u00ad\nfive six.", "天气很好。Seven?", "Möbel."] * 5
    whole = Encoder(tokenizer, language="en").encode(texts)
    monkeypatch.setattr(encoding, "CHARACTERS_AT_ONCE", 11)
    monkeypatch.setattr(encoding, "LARGEST_TABLE", 3)
    parts = Encoder(tokenizer, language="en").encode(texts)
    for one, other in zip(whole[:4], parts[:4], strict=True):
        np.testing.assert_array_equal(one, other)

    sentences = [[tokenizer.encode(s, add_special_tokens=False).ids for s in split_sentences(t, "en")] for t in texts]
    filled = [[ids for ids in document if ids] for document in sentences]
    assert whole.sentence_counts.tolist() == [len(document) for document in filled]
    assert whole.empty_counts.tolist() == [
        len(document) - len(kept) for document, kept in zip(sentences, filled, strict=True)
    ]
    assert whole.token_counts.tolist() == [len(ids) for document in filled for ids in document]
    assert whole.tokens.tolist() == [id_ for document in filled for ids in document for id_ in ids]


def test_other_tokenizers_are_asked_sentence_by_sentence(tokenizer: Tokenizer) -> None:
    assert ends_words_at_runs(tokenizer)
    others = []
    for change in (
        lambda t: setattr(t, "normalizer", normalizers.Lowercase()),
        lambda t: setattr(t, "normalizer", normalizers.BertNormalizer(handle_chinese_chars=False)),
        lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.WhitespaceSplit()),
        lambda t: t.add_tokens([AddedToken("near me")]),
    ):
        other = Tokenizer.from_str(tokenizer.to_str())
        change(other)
        others.append(other)
    for other in others:
        assert not ends_words_at_runs(other)
        ids = other.encode("no near me now", add_special_tokens=False).ids
        assert Encoder(other, language="en").encode(["no near me now"]).tokens.tolist() == ids


def test_words_of_chinese_text_are_marked_token_by_token() -> None:
    pytest.importorskip("rjieba", reason="needs the zh extra")
    text = "我们使用语言模型。The unwanted words of 北京大学."
    tokenizer = train_tokenizer([text, "the un want ed word s"], vocab_size=97)
    encoded = Encoder(tokenizer, language="zh", mark_words=True).encode([text, "\u200d", "语言"])
    tokens = [tokenizer.id_to_token(id_) for id_ in encoded.tokens.tolist()]
    assert encoded.words is not None
    marked = [token for token, word in zip(tokens, encoded.words.tolist(), strict=True) if word]
    assert {"们", "言", "型"} <= set(marked)
    assert not {"我", "语", "模", "the"} & set(marked)
    assert all(token in marked for token in tokens if token.startswith("##"))
