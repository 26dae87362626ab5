"""A corpus against a slow truth, sentences encoded one by one; and what must never change or be left behind."""

import itertools
import json
import os
import pickle
import string
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import sentencex
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.data import encoding, pieces, token_writer
from minibert.data.corpus import Corpus, PrepareConfig, build_corpus
from minibert.data.corpus_files import fingerprint
from minibert.data.pairs import PairSettings, label_share
from minibert.data.publish import publish
from minibert.data.random import generator
from minibert.data.sentences import split_sentences
from minibert.data.splits import DROPPED, TRAIN, VALIDATION, hash_document, split_documents
from minibert.data.token_store import open_tokens
from minibert.data.token_writer import TokenWriter
from minibert.data.tokenizer import SPECIAL_TOKENS, load_tokenizer, save_tokenizer, train_tokenizer
from minibert.errors import UserError


def make_texts(documents: int, *, seed: int = 0, sentences: int = 7) -> list[str]:
    """Documents of one to three paragraphs of random words; all different."""
    rng = generator(seed, 1)
    words = ["".join(rng.choice(list(string.ascii_lowercase), size=rng.integers(2, 8))) for _ in range(101)]

    def sentence() -> str:
        return " ".join(rng.choice(words, size=rng.integers(3, 11))).capitalize() + "."

    return [
        "\n".join(" ".join(sentence() for _ in range(rng.integers(1, sentences))) for _ in range(rng.integers(1, 4)))
        for _ in range(documents)
    ]


def write_texts(path: Path, texts: Iterable[str]) -> Path:
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8", newline="\n")
    return path


@pytest.fixture
def config(tmp_path: Path) -> PrepareConfig:
    """A file of 53 documents, 11 of them to be held out."""
    source = write_texts(tmp_path / "texts.txt", make_texts(53))
    return PrepareConfig([str(source)], str(tmp_path / "corpus"), vocab_size=211, validation_share=0.2)


def open_both(directory: str | Path) -> tuple[Corpus, Corpus]:
    return Corpus.open(directory, "train"), Corpus.open(directory, "validation")


def documents_of(corpus: Corpus) -> list[list[list[int]]]:
    """Documents of sentences of ids, by the offsets."""
    sentences = [corpus.tokens(*ends).tolist() for ends in itertools.pairwise(corpus.sentence_offsets.tolist())]
    return [sentences[begin:end] for begin, end in itertools.pairwise(corpus.document_offsets.tolist())]


def files_in(directory: str | Path) -> dict[str, bytes]:
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in Path(directory).rglob("*") if p.is_file()}


# What is in it


def test_a_corpus_holds_each_sentence_encoded_in_order_and_each_document_in_one_part(config: PrepareConfig) -> None:
    description, is_new = build_corpus(config)
    train, validation = open_both(config.output)
    tokenizer = load_tokenizer(config.output)
    expected = [
        [
            tokenizer.encode(s, add_special_tokens=False).ids
            for p in text.split("\n")
            for s in sentencex.segment("en", p)
        ]
        for text in make_texts(53)
    ]
    held_out = documents_of(validation)
    assert is_new
    assert documents_of(train) == [document for document in expected if document not in held_out]
    assert held_out == [document for document in expected if document in held_out]
    assert len(held_out) == 11
    assert description["counts"]["train"] == {
        "documents": 42,
        "sentences": len(train.sentence_offsets) - 1,
        "tokens": sum(len(ids) for document in documents_of(train) for ids in document),
    }


def test_datasets_reads_the_same_rows(config: PrepareConfig) -> None:
    build_corpus(config)
    for split in ("train", "validation"):
        rows = datasets.Dataset.from_file(str(Path(config.output) / f"{split}.arrow"))
        assert rows["sentences"][:] == documents_of(Corpus.open(config.output, split))  # type: ignore[arg-type]


def test_special_tokens_in_the_text_stay_plain_text(config: PrepareConfig, tmp_path: Path) -> None:
    write_texts(tmp_path / "texts.txt", [f"press [MASK] then [SEP] now. {text}" for text in make_texts(7)])
    build_corpus(config)
    specials = range(len(SPECIAL_TOKENS))
    ids = [i for corpus in open_both(config.output) for document in documents_of(corpus) for s in document for i in s]
    assert not set(ids) & set(specials)
    assert load_tokenizer(config.output).decode(ids[:7]).startswith("press [ mask ] then")


def test_documents_and_sentences_without_tokens_are_dropped_and_counted(config: PrepareConfig, tmp_path: Path) -> None:
    first, second, third = make_texts(3)
    write_texts(tmp_path / "texts.txt", [first, "\u200d", second, f"{third}\n\u200d\n\u00ad"])
    counts = build_corpus(config).description["counts"]
    assert counts["dropped"]["documents_without_tokens"] == 1
    assert counts["dropped"]["sentences_without_tokens"] == 3
    assert counts["train"]["documents"] == 3
    assert all(document and all(document) for document in documents_of(Corpus.open(config.output, "train")))


def test_equal_documents_are_dropped_and_counted_or_kept_in_one_part(config: PrepareConfig, tmp_path: Path) -> None:
    texts = make_texts(31)
    write_texts(tmp_path / "texts.txt", [*texts, *texts[::3], *texts])
    counts = build_corpus(config).description["counts"]
    assert counts["dropped"]["duplicate_documents"] == 11 + 31
    assert counts["train"]["documents"] + counts["validation"]["documents"] == 31
    build_corpus(replace(config, output=f"{config.output}2", deduplicate=False))
    train, validation = (Counter(map(str, documents_of(corpus))) for corpus in open_both(f"{config.output}2"))
    assert not train.keys() & validation.keys()
    assert sum((train + validation).values()) == 31 + 11 + 31


def test_a_given_tokenizer_is_taken(config: PrepareConfig, tmp_path: Path) -> None:
    save_tokenizer(train_tokenizer(make_texts(20), vocab_size=97), tmp_path / "given")
    build_corpus(replace(config, tokenizer=str(tmp_path / "given")))
    train, _ = open_both(config.output)
    assert train.vocab_size == 97
    given, taken = files_in(tmp_path / "given"), files_in(Path(config.output) / "tokenizer")
    assert taken["vocab.txt"] == given["vocab.txt"]


def test_skipped_lines_and_empty_texts_are_counted_once(config: PrepareConfig, tmp_path: Path) -> None:
    rows = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in [*make_texts(7), "", None])
    (tmp_path / "a.jsonl").write_bytes(rows + b'{"text": "\xff"}\n')
    config = replace(config, sources=[str(tmp_path / "a.jsonl")], encoding_errors="skip")
    dropped = build_corpus(config).description["counts"]["dropped"]
    assert (dropped["undecodable_lines"], dropped["empty_texts"]) == (1, 2)


# Warnings


def test_a_file_of_one_sentence_documents_is_warned_of(config: PrepareConfig, tmp_path: Path) -> None:
    write_texts(tmp_path / "texts.txt", [f"{text.partition('.')[0]}." for text in make_texts(53)])
    description = build_corpus(config).description
    assert description["counts"]["label_shares"] == {"continuation": 0.0, "random": 1.0}
    assert any("100% of the documents have one sentence only" in warning for warning in description["warnings"])


def test_documents_of_several_sentences_give_about_half_of_each_label(config: PrepareConfig, tmp_path: Path) -> None:
    write_texts(tmp_path / "texts.txt", make_texts(401, sentences=47))
    description = build_corpus(config).description
    assert description["counts"]["label_shares"]["random"] == pytest.approx(0.5, abs=0.1)
    assert description["warnings"] == []


def test_a_vocabulary_that_does_not_fit_the_text_is_warned_of(config: PrepareConfig, tmp_path: Path) -> None:
    save_tokenizer(train_tokenizer(make_texts(20), vocab_size=97), tmp_path / "given")
    write_texts(tmp_path / "texts.txt", [f"{text} 天气很好" for text in make_texts(11)])
    description = build_corpus(replace(config, tokenizer=str(tmp_path / "given"))).description
    ids = [i for c in open_both(config.output) for document in documents_of(c) for s in document for i in s]
    assert description["counts"]["unknown_share"] == ids.count(1) / len(ids) > 0.01
    assert any("of the tokens are [UNK]" in warning for warning in description["warnings"])


def test_a_small_corpus_gives_a_smaller_vocabulary_and_says_so(config: PrepareConfig, tmp_path: Path) -> None:
    write_texts(tmp_path / "texts.txt", ["One line.", "Another line.", "A third line."])
    description = build_corpus(replace(config, vocab_size=30_000)).description
    entries = (Path(config.output) / "tokenizer" / "vocab.txt").read_bytes().count(b"\n")
    assert Corpus.open(config.output, "train").vocab_size == description["vocab_size"] == entries < 50
    assert any("30000" in warning for warning in description["warnings"])
    assert any("no documents are held out" in warning for warning in description["warnings"])


# The same again


def test_equal_text_and_settings_give_equal_bytes_whatever_the_portions(
    config: PrepareConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build_corpus(config).description
    monkeypatch.setattr(encoding, "CHARACTERS_AT_ONCE", 301)
    monkeypatch.setattr(pieces, "PIECE_CHARACTERS", 1009)
    second = build_corpus(replace(config, processes=1, output=f"{config.output}2")).description
    assert files_in(config.output) == files_in(f"{config.output}2")
    monkeypatch.setattr(token_writer, "BATCH_TOKENS", 101)
    third = build_corpus(replace(config, processes=1, output=f"{config.output}3")).description
    assert files_in(config.output) != files_in(f"{config.output}3")
    assert first["fingerprint"] == second["fingerprint"] == third["fingerprint"]


def test_the_fingerprint_follows_text_and_settings(config: PrepareConfig, tmp_path: Path) -> None:
    changes = [{}, {"language": "de"}, {"validation_share": 0.3}, {"lowercase": False}, {"vocab_size": 199}]
    found = set()
    for number, change in enumerate(changes):
        settings = replace(config, output=f"{config.output}{number}", **change)  # type: ignore[arg-type]
        found.add(build_corpus(settings).description["fingerprint"])
    write_texts(tmp_path / "texts.txt", make_texts(54)[1:])
    found.add(build_corpus(config).description["fingerprint"])
    assert len(found) == len(changes) + 1


def test_the_fingerprint_covers_every_part_of_a_corpus(tmp_path: Path) -> None:
    def take(vocabulary: bytes, settings: dict[str, object], *documents: list[list[int]]) -> str:
        with TokenWriter(tmp_path, "train", vocab_size=97) as writer:
            for document in documents:
                writer.add(document)
        return fingerprint(vocabulary, settings, tmp_path, ["train"])

    documents = [[1, 2], [3]], [[4]]
    variants = [
        take(b"a", {"b": 1}, *documents),
        take(b"b", {"b": 1}, *documents),
        take(b"a", {"b": 2}, *documents),
        take(b"a", {"b": 1}, [[1, 2], [3]], [[5]]),
        take(b"a", {"b": 1}, [[1], [2, 3]], [[4]]),
        take(b"a", {"b": 1}, [[1, 2]], [[3], [4]]),
    ]
    assert len(set(variants)) == len(variants)
    assert variants[0] == take(b"a", {"b": 1}, *documents)


def test_the_order_of_files_does_not_change_what_is_held_out(config: PrepareConfig, tmp_path: Path) -> None:
    texts = make_texts(53)
    halves = [str(write_texts(tmp_path / f"{n}.txt", texts[n::2])) for n in range(2)]
    for number, sources in enumerate([halves, halves[::-1], config.sources]):
        build_corpus(replace(config, sources=sources, output=f"{config.output}{number}"))
    held_out = [sorted(documents_of(open_both(f"{config.output}{number}")[1])) for number in range(3)]
    assert held_out[0] == held_out[1] == held_out[2]


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(0, 40), max_size=60),
    st.floats(0, 0.5),
    st.integers(2, 9),
    st.booleans(),
)
def test_splits_hold_out_the_smallest_hashes(numbers: list[int], share: float, most: int, deduplicate: bool) -> None:
    hashes = np.array([hash_document(str(number)) for number in numbers], np.uint64)
    with_words = np.array([number % 5 > 0 for number in numbers], np.bool_)
    parts = split_documents(hashes, with_words, share=share, most=most, deduplicate=deduplicate)
    different = sorted({int(h) for h, words in zip(hashes, with_words, strict=True) if words})
    wanted = 0 if share == 0 or len(different) < 4 else min(max(round(share * len(different)), 2), most)
    held_out = set(different[:wanted])
    seen: set[int] = set()
    for code, words, part in zip(hashes.tolist(), with_words, parts, strict=True):
        repeated = deduplicate and code in seen
        assert part == (DROPPED if repeated else VALIDATION if words and code in held_out else TRAIN)
        seen.add(code)


# Reading


def test_every_range_of_tokens_is_that_of_the_flat_stream(
    config: PrepareConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_writer, "BATCH_TOKENS", 101)
    build_corpus(config)
    train, _ = open_both(config.output)
    assert len(open_tokens(Path(config.output), "train").pieces) > 7
    rows = datasets.Dataset.from_file(str(Path(config.output) / "train.arrow"))["sentences"][:]
    flat = [i for document in rows for sentence in document for i in sentence]
    assert train.sentence_offsets[-1] == len(flat)
    for begin, end in np.sort(generator(0, 3).integers(len(flat) + 1, size=(499, 2))).tolist():
        assert train.tokens(begin, end).tolist() == flat[begin:end]
    for at in range(len(flat) + 1):
        assert train.tokens(at, at).tolist() == []
    assert train.tokens(0, len(flat)).dtype == train.tokens(0, 0).dtype == np.uint16


def test_pairs_can_be_planned_on_it_and_it_travels_to_other_processes_by_name(config: PrepareConfig) -> None:
    build_corpus(config)
    corpus, _ = open_both(config.output)
    message = pickle.dumps(corpus)
    shares = [label_share(c, PairSettings(max_length=31), seed=1) for c in (corpus, pickle.loads(message))]
    assert len(message) < 500
    assert shares[0] == shares[1]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, np.uint16), (65_537, np.int32)])
def test_ids_take_two_bytes_where_they_fit(tmp_path: Path, vocab_size: int, dtype: type) -> None:
    with TokenWriter(tmp_path, "train", vocab_size=vocab_size) as writer:
        writer.add([[vocab_size - 1, 0], [7]])
    tokens = open_tokens(tmp_path, "train").tokens(0, 3)
    assert tokens.dtype == dtype
    assert tokens.tolist() == [vocab_size - 1, 0, 7]


def test_a_directory_that_is_no_corpus_is_refused(config: PrepareConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent is not a corpus: it holds no corpus.json"):
        Corpus.open(tmp_path / "absent", "train")
    build_corpus(config)
    path = Path(config.output) / "corpus.json"
    description = json.loads(path.read_text(encoding="utf-8"))
    for content, message in [
        (json.dumps(description | {"format": 1}), r"corpus.json has format 1; expected 2"),
        (json.dumps([description]), r"corpus.json is not the description of a corpus"),
        ('{"format": 2', r"corpus.json is not the description of a corpus"),
    ]:
        path.write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match=message):
            Corpus.open(config.output, "train")


def test_a_damaged_arrow_file_is_named(config: PrepareConfig) -> None:
    build_corpus(config)
    path = Path(config.output) / "train.arrow"
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    with pytest.raises(UserError, match=rf"train.arrow has {len(content) - 100} bytes; expected {len(content)}"):
        Corpus.open(config.output, "train")
    path.write_bytes(b"\0" * len(content))
    with pytest.raises(UserError, match=r"train.arrow is not a whole Arrow file"):
        Corpus.open(config.output, "train")
    path.unlink()
    with pytest.raises(UserError, match=r"train.arrow has 0 bytes"):
        Corpus.open(config.output, "validation")


# What is refused, and that nothing is left behind


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], r"the sources hold no words \(0 documents\)"),
        (["\u200d", "\u00ad"], r"the sources hold no words \(2 documents\)"),
        (["One.\nTwo.\nThree."], r"the sources hold one document only .*blank line"),
        (["One.", "\u200d", "One."], r"the sources hold one document only"),
    ],
)
@pytest.mark.parametrize("deduplicate", [True, False])
def test_a_corpus_needs_two_different_documents(
    config: PrepareConfig, tmp_path: Path, texts: list[str], message: str, deduplicate: bool
) -> None:
    write_texts(tmp_path / "texts.txt", texts)
    with pytest.raises(UserError, match=message):
        build_corpus(replace(config, deduplicate=deduplicate))
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": []}, "sources is empty"),
        ({"validation_share": 0.6}, "validation_share is 0.6; expected at most 0.5"),
        ({"validation_documents": 1}, "validation_documents is 1; expected 2 at least"),
        ({"language": "English"}, "language is 'English'; expected the code of a language"),
    ],
)
def test_settings_that_make_no_corpus_are_refused(
    config: PrepareConfig, change: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        replace(config, **change)  # type: ignore[arg-type]


def test_an_output_that_cannot_be_made_is_refused_before_anything_is_read(
    config: PrepareConfig, tmp_path: Path
) -> None:
    for output, message in [
        (tmp_path / "texts.txt", r"is where the source .*texts.txt lies"),
        (tmp_path / "texts.txt" / "corpus", r"cannot be written: .*texts.txt is no folder"),
        (tmp_path, r"is where the source .*texts.txt lies"),
    ]:
        with pytest.raises(UserError, match=message):
            build_corpus(replace(config, output=str(output), overwrite=True), track=refuse_to_read)
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]


def refuse_to_read(documents: Iterable[Any], stage: str, total: int | None) -> Iterator[Any]:
    raise AssertionError(f"reading began: {stage}")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device"), RuntimeError])
@pytest.mark.parametrize("there_already", [True, False])
def test_a_failure_leaves_what_was_there_and_nothing_else(
    config: PrepareConfig, tmp_path: Path, error: BaseException | type[BaseException], there_already: bool
) -> None:
    if there_already:
        build_corpus(config)
    before = files_in(tmp_path)

    def fail_late(documents: Iterable[Any], stage: str, total: int | None) -> Iterator[Any]:
        yield from itertools.islice(documents, 5 if stage == "encoding" else None)
        if stage == "encoding":
            raise error

    with pytest.raises(UserError if isinstance(error, OSError) else error):  # type: ignore[arg-type]
        build_corpus(replace(config, vocab_size=199, overwrite=True), track=fail_late)
    assert files_in(tmp_path) == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_text_that_changes_between_the_two_readings_is_noticed(config: PrepareConfig, tmp_path: Path) -> None:
    for texts in (make_texts(53)[::-1], make_texts(59), make_texts(47)):

        def change(documents: Iterable[Any], stage: str, total: int | None, texts: list[str] = texts) -> Iterator[Any]:
            if stage == "encoding":
                write_texts(tmp_path / "texts.txt", texts)
            yield from documents

        write_texts(tmp_path / "texts.txt", make_texts(53))
        with pytest.raises(UserError, match="while the corpus was made"):
            build_corpus(config, track=change)
        assert not Path(config.output).exists()


# A corpus that is there already


def test_the_same_corpus_is_not_made_again(config: PrepareConfig) -> None:
    first = build_corpus(config)
    before = Path(config.output).stat().st_mtime_ns
    again = build_corpus(config, track=refuse_to_read)
    assert (again.description, again.is_new) == (first.description, False)
    assert Path(config.output).stat().st_mtime_ns == before


def test_another_corpus_is_replaced_only_where_that_is_asked_for(config: PrepareConfig, tmp_path: Path) -> None:
    build_corpus(config)
    other = replace(config, vocab_size=199)
    with pytest.raises(UserError, match=r"corpus is there already, with other settings \(vocab_size 211, not 199\)"):
        build_corpus(other, track=refuse_to_read)
    assert Corpus.open(config.output, "train").vocab_size == 211
    assert build_corpus(replace(other, overwrite=True)).is_new
    assert Corpus.open(config.output, "train").vocab_size == 199
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "texts.txt"]


def test_a_corpus_of_changed_files_or_a_damaged_one_is_not_taken_for_the_same(
    config: PrepareConfig, tmp_path: Path
) -> None:
    build_corpus(config)
    os.utime(tmp_path / "texts.txt", ns=(1, 1))
    with pytest.raises(UserError, match="with other sources; choose another output, or set overwrite: true"):
        build_corpus(config)
    assert build_corpus(replace(config, overwrite=True)).is_new
    (Path(config.output) / "train.arrow").write_bytes(b"")
    with pytest.raises(UserError, match=r"train.arrow has 0 bytes"):
        build_corpus(config)
    assert build_corpus(replace(config, overwrite=True)).is_new


def test_a_corpus_of_another_tokenizer_is_not_taken_for_the_same(config: PrepareConfig, tmp_path: Path) -> None:
    given = replace(config, tokenizer=str(tmp_path / "given"))
    for vocab_size in (97, 89):
        save_tokenizer(train_tokenizer(make_texts(20), vocab_size=vocab_size), tmp_path / "given")
        if vocab_size == 97:
            build_corpus(given)
    with pytest.raises(UserError, match="with other tokenizer"):
        build_corpus(given, track=refuse_to_read)


def test_a_folder_that_is_no_corpus_is_never_replaced(config: PrepareConfig) -> None:
    Path(config.output).mkdir()
    (Path(config.output) / "thesis.tex").touch()
    with pytest.raises(UserError, match="is there already and is not a corpus"):
        build_corpus(replace(config, overwrite=True), track=refuse_to_read)
    (Path(config.output) / "thesis.tex").unlink()
    assert build_corpus(config).is_new  # an empty folder is no loss


def test_a_folder_is_put_back_where_its_replacement_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/old", "aside/new"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name == "aside":
            raise PermissionError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(PermissionError):
        publish(tmp_path / "aside", tmp_path / "a", replaced=tmp_path / "replaced")
    assert sorted(files_in(tmp_path)) == ["a/old", "aside/new"]
    with pytest.raises(FileExistsError):
        publish(tmp_path / "aside", tmp_path / "a")


# Sentences


def test_one_bracket_without_a_partner_does_not_swallow_a_speech() -> None:
    speech = "He (said and left. " + "This is a sentence of it. " * 211 + "He said (no)."
    sentences = list(split_sentences(f"{speech}\nA (short. Bracket) stays whole.", "en"))
    assert len(sentencex.segment("en", speech)) == 1
    assert "".join(sentences) == f"{speech}A (short. Bracket) stays whole."
    assert len(sentences) == 1 + 211 + 1 + 1
    assert sentences[-1] == "A (short. Bracket) stays whole."


def test_chinese_sentences_end_at_full_width_marks() -> None:
    assert list(split_sentences("今天天气很好。我们去公园！好吗？", "zh")) == [
        "今天天气很好。",
        "我们去公园！",
        "好吗？",
    ]
