"""The tokenizer against published BERT's rules, against `transformers`, and against itself after a save."""

import gzip
import json
import os
import subprocess
import sys
import unicodedata
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, BertTokenizer

from minibert.data.tokenizer import (
    SPECIAL_TOKENS,
    TokenizerSettings,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
    vocabulary,
)
from minibert.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:the texts give")

TEXTS = [
    "press [MASK] then [SEP] now, the naïve Möchte",
    "the wanted, the unwanted, the running 博推 runs\tand ran; ah! Straße 123",
]
FILES = ("tokenizer.json", "vocab.txt", "tokenizer_config.json")
BERT_ENTRIES = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"ab博![]é", "##a", "mask"]
CHARACTERS = "aàbcAÀß 博推，\t\n\r\x00\x0b\x85\xa0\xad\u200b\u2028\u0301한😀.'"
any_text = st.text(st.one_of(st.sampled_from(CHARACTERS), st.characters(exclude_categories=["Cs"])))


@pytest.fixture(scope="module")
def tokenizer():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train_tokenizer(TEXTS, vocab_size=211)


@pytest.fixture(scope="module")
def by_choices(tmp_path_factory):
    """Tokenizers of each lowercase and strip_accents, each with the one that transformers loads from its directory."""
    pairs = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for lowercase in (True, False):
            for strip_accents in (None, True, False):
                texts = [*TEXTS, CHARACTERS, " ".join(CHARACTERS)]
                ours = train_tokenizer(texts, vocab_size=211, lowercase=lowercase, strip_accents=strip_accents)
                directory = tmp_path_factory.mktemp("tokenizer")
                save_tokenizer(ours, directory)
                pairs[lowercase, strip_accents] = (ours, AutoTokenizer.from_pretrained(directory), directory)
    return pairs


def write_vocabulary(directory: Path, entries: list[str], **config: object) -> Path:
    (directory / "vocab.txt").write_text("".join(f"{entry}\n" for entry in entries), encoding="utf-8", newline="\n")
    if config:
        (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def pieces_of(tokenizer: Tokenizer, text: str) -> list[str]:
    return tokenizer.encode(text, add_special_tokens=False).tokens


def words_of(tokenizer: Tokenizer, text: str) -> list[str]:
    normal = tokenizer.normalizer.normalize_str(text)
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal)]


def documents_of(path: Path, *, every: int) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for number, line in enumerate(lines) if number % every == 0]


# What is trained


def test_the_same_texts_give_the_same_bytes_in_processes_that_hash_differently(tmp_path):
    program = (
        "import sys; from minibert.data.tokenizer import *;"
        "texts = [f'w{n % 7} x{n % 11}y{n % 13} [MASK]' for n in range(997)];"
        "save_tokenizer(train_tokenizer(texts, vocab_size=61), sys.argv[1])"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", program, str(tmp_path / seed)], check=True, env=environment)
    for name in FILES:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_twelve_trainings_on_200_lines_full_of_ties_give_one_vocabulary():
    random = np.random.default_rng(7)
    lines = ["".join(random.choice(list("abcdefgh "), 31)) for _ in range(200)]
    vocabularies = {json.dumps(train_tokenizer(lines, vocab_size=300).get_vocab(), sort_keys=True) for _ in range(12)}
    assert len(vocabularies) == 1


def test_a_stream_of_texts_is_read_once():
    def stream():
        yield "one two"
        yield "two three"

    assert "##wo" in train_tokenizer(stream(), vocab_size=99).get_vocab()


def test_special_tokens_come_first_then_the_alphabet_then_what_is_merged():
    entries = sorted((id_, piece) for piece, id_ in train_tokenizer(["ab ab"], vocab_size=8).get_vocab().items())
    assert entries == list(enumerate([*SPECIAL_TOKENS, "##b", "a", "ab"]))


def test_the_vocabulary_never_exceeds_the_request_and_the_characters_without_room_are_counted():
    with pytest.warns(UserWarning, match=r"room for 45 of 300 characters: 255 fall to \[UNK\], and with them 85.00%"):
        tokenizer = train_tokenizer(["".join(chr(0x4E00 + n) for n in range(300))], vocab_size=50)
    assert vocabulary(tokenizer).size == tokenizer.get_vocab_size() == 50


@settings(max_examples=50, deadline=None)
@given(st.lists(any_text, max_size=5), st.integers(6, 61))
def test_no_text_gives_more_entries_than_asked(texts, vocab_size):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = train_tokenizer([*texts, "a"], vocab_size=vocab_size)
    assert tokenizer.get_vocab_size() == vocabulary(tokenizer).size <= vocab_size


def test_three_lines_give_a_smaller_vocabulary_and_a_warning_with_its_size():
    with pytest.warns(UserWarning, match="the texts give 9 vocabulary entries, 30000 were asked for"):
        tokenizer = train_tokenizer(["ab", "ab", "c"], vocab_size=30_000)
    assert vocabulary(tokenizer).size == 9


@pytest.mark.parametrize("texts", [[], [""], [" \t\n", "\u200d\x00"]])
def test_texts_without_a_word_are_refused(texts):
    with pytest.raises(UserError, match="no word in the texts"):
        train_tokenizer(texts, vocab_size=100)


def test_a_vocabulary_without_room_and_a_single_string_are_refused():
    with pytest.raises(UserError, match="vocab_size is 5, expected more than the 5 special tokens"):
        train_tokenizer(["a"], vocab_size=5)
    with pytest.raises(UserError, match="texts is one string"):
        train_tokenizer("a text", vocab_size=99)


def test_the_settings_are_the_arguments_of_training(tokenizer):
    given_settings = TokenizerSettings(vocab_size=211)
    assert train_tokenizer(TEXTS, **vars(given_settings)).get_vocab() == tokenizer.get_vocab()


# How text is split


def test_special_tokens_in_text_are_plain_pieces(tokenizer):
    special = vocabulary(tokenizer).special
    ids = tokenizer.encode("press [MASK] then [SEP] now", add_special_tokens=False).ids
    assert not special[ids].any()
    assert tokenizer.decode(ids) == "press [ mask ] then [ sep ] now"


def test_masks_are_found_in_text_once_that_is_asked_for(tmp_path, tokenizer):
    save_tokenizer(tokenizer, tmp_path)
    other = load_tokenizer(tmp_path)
    other.encode_special_tokens = False
    assert pieces_of(other, "now [MASK]")[-1] == "[MASK]"


def test_a_pair_is_framed_as_published_bert_does():
    encoding = train_tokenizer(["a b"], vocab_size=99).encode("a", "b b")
    assert encoding.tokens == ["[CLS]", "a", "[SEP]", "b", "b", "[SEP]"]
    assert encoding.type_ids == [0, 0, 0, 1, 1, 1]
    assert encoding.special_tokens_mask == [1, 0, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("lowercase", "strip_accents", "normal"),
    [
        (False, None, "naïve Möchte"),
        (True, None, "naive mochte"),
        (True, False, "naïve möchte"),
        (False, True, "naive Mochte"),
    ],
)
def test_accents_go_with_the_case_unless_told_otherwise(by_choices, lowercase, strip_accents, normal):
    tokenizer, _, directory = by_choices[lowercase, strip_accents]
    for one in (tokenizer, load_tokenizer(directory)):
        assert one.normalizer.normalize_str("naïve Möchte") == normal


def test_white_space_parts_words_and_invisible_characters_vanish(tokenizer):
    assert words_of(tokenizer, "a\tb\nc\r\nd") == ["a", "b", "c", "d"]
    for text in ("a\u200db", "a\u200bb", "a\u00adb", "\ufeffab", "a\x00b"):
        assert words_of(tokenizer, text) == ["ab"]
    assert words_of(tokenizer, "👨\u200d👩\u200d👧") == ["👨👩👧"]


@pytest.mark.parametrize("text", ["", " ", "\u200d", "\x00"])
def test_text_without_a_word_is_only_framed(tokenizer, text):
    assert tokenizer.encode(text).tokens == ["[CLS]", "[SEP]"]


def test_han_characters_stand_alone_and_other_scripts_do_not(tokenizer):
    assert words_of(tokenizer, "ah博推zz") == ["ah", "博", "推", "zz"]
    assert words_of(tokenizer, "１２ カナ かな 한글") == ["１２", "カナ", "かな", unicodedata.normalize("NFD", "한글")]


def test_a_word_of_101_characters_is_one_unknown(tmp_path):
    tokenizer = load_tokenizer(write_vocabulary(tmp_path, BERT_ENTRIES))
    assert pieces_of(tokenizer, "a" * 100) == ["a", *["##a"] * 99]
    assert pieces_of(tokenizer, "a" * 101) == ["[UNK]"]


def test_neighbouring_unknown_emoji_are_one_unknown_whose_span_covers_both(tmp_path):
    tokenizer = load_tokenizer(write_vocabulary(tmp_path, BERT_ENTRIES))
    encoding = tokenizer.encode("a 😀😀 b", add_special_tokens=False)
    assert encoding.tokens == ["a", "[UNK]", "b"]
    assert encoding.offsets == [(0, 1), (2, 4), (5, 6)]


# What others make of it


@settings(max_examples=200, deadline=None)
@given(any_text, any_text.filter(bool), st.booleans(), st.sampled_from([None, True, False]))
def test_transformers_gives_the_same_ids_on_any_text(by_choices, text, pair, lowercase, strip_accents):
    ours, theirs, _ = by_choices[lowercase, strip_accents]
    expected = ours.encode(text, pair)
    actual = theirs(text, pair, split_special_tokens=True)
    assert actual["input_ids"] == expected.ids
    assert actual["token_type_ids"] == expected.type_ids
    assert actual["attention_mask"] == expected.attention_mask


def test_transformers_splits_special_tokens_in_text_when_asked_and_finds_masks_otherwise(by_choices):
    ours, theirs, _ = by_choices[True, None]
    text = "press [MASK] then [SEP] now"
    assert theirs(text, split_special_tokens=True)["input_ids"] == ours.encode(text).ids
    assert theirs(text)["input_ids"].count(theirs.mask_token_id) == 1


def test_transformers_knows_the_class_the_length_and_the_special_tokens(tmp_path, tokenizer):
    save_tokenizer(tokenizer, tmp_path, model_max_length=131)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(theirs, BertTokenizer)
    assert theirs.model_max_length == 131
    ids = [theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id]
    assert ids == [0, 1, 2, 3, 4]
    assert len(theirs) == tokenizer.get_vocab_size()


@pytest.mark.parametrize(
    "config", [{}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}]
)
def test_a_published_vocabulary_gives_the_ids_of_transformers(tmp_path, config):
    ours = load_tokenizer(write_vocabulary(tmp_path, BERT_ENTRIES, **config))
    theirs = BertTokenizer(str(tmp_path / "vocab.txt"), **config)
    for text in ("a B aa!", "É é 博a", "ab aaa", "[ mask ]"):
        assert ours.encode(text, text).ids == theirs(text, text)["input_ids"]


@pytest.mark.parametrize(
    ("name", "text"),
    [("bert-base-uncased", "general_en"), ("bert-base-chinese", "chinese"), ("bert-base-uncased", "chinese")],
)
def test_published_vocabularies_give_the_ids_of_transformers_on_real_text(shared, tmp_path, name, text):
    source = shared / "models" / "vocab" / f"{name}.txt"
    (tmp_path / "vocab.txt").write_bytes(source.read_bytes())
    ours, theirs = load_tokenizer(tmp_path), BertTokenizer(str(source))
    documents = documents_of(shared / "text" / f"{text}.jsonl.gz", every=401)
    assert len(documents) > 10
    assert [ours.encode(document).ids for document in documents] == theirs(documents)["input_ids"]


def test_held_out_text_takes_as_many_pieces_as_with_the_library_s_trainer(shared):
    documents = documents_of(shared / "text" / "general_en.jsonl.gz", every=23)
    learned, held_out = documents[::2], documents[1::2]
    ours = train_tokenizer(learned, vocab_size=4_001)
    theirs = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    theirs.normalizer, theirs.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    theirs.train_from_iterator(
        learned,
        trainers.WordPieceTrainer(
            vocab_size=4_001, min_frequency=2, special_tokens=list(SPECIAL_TOKENS), show_progress=False
        ),
    )
    lengths = [sum(len(pieces_of(one, document)) for document in held_out) for one in (ours, theirs)]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.01)


# What is saved and loaded


@pytest.mark.parametrize("kept", [FILES, ("vocab.txt", "tokenizer_config.json"), ("tokenizer.json",)])
def test_what_is_saved_is_loaded_the_same_from_either_file(by_choices, tmp_path, kept):
    for choices, (ours, _, saved) in by_choices.items():
        directory = tmp_path / str(choices)
        directory.mkdir()
        for name in kept:
            (directory / name).write_bytes((saved / name).read_bytes())
        loaded = load_tokenizer(directory)
        assert loaded.to_str() == ours.to_str()
        assert loaded.encode_special_tokens
        assert (loaded.normalizer.lowercase, loaded.normalizer.strip_accents) == choices


def test_a_loaded_tokenizer_is_saved_with_the_same_bytes(by_choices, tmp_path):
    for choices, (_, _, saved) in by_choices.items():
        save_tokenizer(load_tokenizer(saved), tmp_path / str(choices))
        for name in FILES:
            assert (tmp_path / str(choices) / name).read_bytes() == (saved / name).read_bytes()


def test_the_tokenizer_of_a_corpus_is_found_in_its_subfolder(tmp_path, tokenizer):
    save_tokenizer(tokenizer, tmp_path / "tokenizer")
    assert load_tokenizer(str(tmp_path)).to_str() == tokenizer.to_str()


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r"])
def test_only_a_line_feed_separates_the_entries_of_a_vocabulary(tmp_path, separator):
    entries = [*SPECIAL_TOKENS, separator, f"a{separator}", "a", "##b"]
    loaded = load_tokenizer(write_vocabulary(tmp_path, entries))
    save_tokenizer(loaded, tmp_path / "again")
    again = load_tokenizer(tmp_path / "again")
    assert [again.id_to_token(id_) for id_ in range(again.get_vocab_size())] == entries
    assert (tmp_path / "again" / "vocab.txt").read_bytes() == (tmp_path / "vocab.txt").read_bytes()
    assert again.encode("ab").ids == [2, 7, 8, 3]


def test_a_vocabulary_written_on_windows_has_the_same_ids(tmp_path):
    (tmp_path / "vocab.txt").write_bytes("".join(f"{entry}\r\n" for entry in BERT_ENTRIES).encode())
    assert load_tokenizer(tmp_path).get_vocab() == {entry: id_ for id_, entry in enumerate(BERT_ENTRIES)}


def test_padding_and_truncation_of_a_published_file_are_switched_off(tmp_path, tokenizer):
    other = Tokenizer.from_str(tokenizer.to_str())
    other.enable_truncation(3)
    other.enable_padding(length=7)
    other.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("now now now now").ids == tokenizer.encode("now now now now").ids


def test_added_tokens_are_kept_and_known_to_transformers(tmp_path, tokenizer):
    other = Tokenizer.from_str(tokenizer.to_str())
    other.add_tokens(["new york"])
    save_tokenizer(other, tmp_path)
    loaded, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert pieces_of(loaded, "the new york") == ["the", "new york"]
    assert loaded.encode("the new york").ids == theirs("the new york")["input_ids"]
    assert vocabulary(loaded).size == vocabulary(tokenizer).size + 1 == len(theirs)


def test_a_tokenizer_with_another_normalizer_is_known_to_transformers_as_it_is(tmp_path, tokenizer):
    other = Tokenizer.from_str(tokenizer.to_str())
    other.normalizer = normalizers.Sequence([normalizers.Replace("runs", "now"), normalizers.Lowercase()])
    save_tokenizer(other, tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("Press runs")["input_ids"] == tokenizer.encode("press now").ids


BROKEN = {
    "absent": ({}, "there is no tokenizer here, expected tokenizer.json or vocab.txt"),
    "cut": ({"tokenizer.json": b'{"version": "1.0", "model"'}, "tokenizer.json: expected a tokenizer"),
    "empty json": ({"tokenizer.json": b""}, "tokenizer.json: expected a tokenizer"),
    "no model": ({"tokenizer.json": b"{}"}, "tokenizer.json: expected a tokenizer"),
    "empty": ({"vocab.txt": b""}, r"vocab.txt: the vocabulary lacks \[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\]"),
    "no mask": (
        {"vocab.txt": b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n"},
        r"vocab.txt: the vocabulary lacks \[MASK\], expected",
    ),
    "twice": ({"vocab.txt": b"[PAD]\na\nb\na\n"}, "vocab.txt:4: 'a' stands in line 2 too"),
    "not UTF-8": ({"vocab.txt": b"[PAD]\nb\xff\n"}, "vocab.txt:2: byte 7 is not UTF-8"),
    "config cut": (
        {"vocab.txt": b"a\n", "tokenizer_config.json": b'{\n"do_'},
        "tokenizer_config.json:2: expected JSON",
    ),
    "config a list": (
        {"vocab.txt": b"a\n", "tokenizer_config.json": b"[]"},
        "tokenizer_config.json: expected a JSON object",
    ),
    "config a word": (
        {"vocab.txt": b"a\n", "tokenizer_config.json": b'{"do_lower_case": "no"}'},
        'tokenizer_config.json: do_lower_case is "no", expected true or false',
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_tokenizer_is_refused_by_the_name_of_its_file(tmp_path, case):
    files, message = BROKEN[case]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"^{tmp_path}.*{message}"):
        load_tokenizer(tmp_path)


def test_ids_with_a_gap_are_refused(tmp_path):
    model = models.WordPiece({**{token: id_ for id_, token in enumerate(SPECIAL_TOKENS)}, "a": 7}, unk_token="[UNK]")
    Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="6 entries have ids up to 7, expected each id from 0 once"):
        load_tokenizer(tmp_path)


# What batches need to know


def test_a_vocabulary_describes_a_published_layout(tmp_path):
    described = vocabulary(load_tokenizer(write_vocabulary(tmp_path, BERT_ENTRIES)))
    assert (described.size, described.pad, described.unk, described.cls, described.sep, described.mask) == (
        15,
        0,
        2,
        3,
        4,
        5,
    )
    assert np.flatnonzero(described.special).tolist() == [0, 2, 3, 4, 5]
    assert np.flatnonzero(described.continuation).tolist() == [13]
    assert described.special.shape == described.continuation.shape == (15,)
    assert described.special.dtype == described.continuation.dtype == np.bool_


def test_special_tokens_that_a_user_adds_are_special_too(tokenizer):
    other = Tokenizer.from_str(tokenizer.to_str())
    other.add_special_tokens(["[ENTITY]"])
    assert vocabulary(other).special[-1]
    assert vocabulary(other).size == vocabulary(tokenizer).size + 1


def test_the_special_tokens_that_a_tokenizer_lacks_are_named():
    lacking = Tokenizer(models.WordPiece({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "a": 3}, unk_token="[UNK]"))
    with pytest.raises(UserError, match=r"lacks \[SEP\], \[MASK\], expected all of \[PAD\], \[UNK\], \[CLS\]"):
        vocabulary(lacking)
