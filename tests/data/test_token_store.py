"""Files of token ids against the documents that went in, whatever the portions and however often it stopped."""

import itertools
from pathlib import Path

import datasets
import numpy as np
import pytest

from minibert.data import token_writer
from minibert.data.random import generator
from minibert.data.token_store import open_tokens, read_tokens, token_files
from minibert.data.token_writer import Documents, TokenWriter
from minibert.errors import UserError


def make_documents(count: int) -> list[list[list[int]]]:
    rng = generator(3, 11)
    return [
        [rng.integers(1000, size=rng.integers(1, 9)).tolist() for _ in range(rng.integers(1, 7))] for _ in range(count)
    ]


def as_arrays(documents: list[list[list[int]]]) -> Documents:
    """Words go on at odd ids."""
    sentences = list(itertools.chain(*documents))
    tokens = np.array(list(itertools.chain(*sentences)), np.int64)
    counts = np.array([len(ids) for ids in sentences]), np.array([len(document) for document in documents])
    return Documents(tokens, *counts, tokens % 2 == 1)


def write(directory: Path, documents: list[list[list[int]]]) -> list[bytes]:
    with TokenWriter(directory, "train", vocab_size=1000, words=True) as writer:
        writer.extend(as_arrays(documents))
    return [path.read_bytes() for path in token_files(directory, "train", words=True)]


def test_offsets_ids_and_marks_are_those_of_a_loop_over_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_writer, "BATCH_TOKENS", 101)
    documents = make_documents(211)
    write(tmp_path, documents)
    store = open_tokens(tmp_path, "train")
    sentences, tokens = [0], [0]
    flat: list[int] = []
    for document in documents:
        sentences.append(sentences[-1] + len(document))
        for ids in document:
            tokens.append(tokens[-1] + len(ids))
            flat += ids
    assert store.document_offsets.tolist() == sentences
    assert store.sentence_offsets.tolist() == tokens
    assert [id_ for ids in read_tokens(tmp_path, "train") for id_ in ids.tolist()] == flat
    for begin, end in np.sort(generator(0, 3).integers(len(flat) + 1, size=(199, 2))).tolist():
        assert store.tokens(begin, end).tolist() == flat[begin:end]
        marks = store.continues(begin, end)
        assert marks is not None
        assert marks.tolist() == [id_ % 2 == 1 for id_ in flat[begin:end]]
    rows = datasets.Dataset.from_file(str(tmp_path / "train.arrow"))
    assert rows["sentences"][:] == documents


def test_a_writer_that_goes_on_where_another_was_killed_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_writer, "BATCH_TOKENS", 101)
    documents, rng = make_documents(211), generator(3, 12)
    (tmp_path / "whole").mkdir()
    expected = write(tmp_path / "whole", documents)
    writer, done, stops = TokenWriter(tmp_path, "train", vocab_size=1000, words=True), 0, 0
    while done < len(documents):
        portion = int(rng.integers(1, 29))
        writer.extend(as_arrays(documents[done : done + portion]))
        done += portion
        if rng.random() < 0.5:  # all that is not in whole record batches is lost, and there may be some rubbish
            writer.sync()
            (tmp_path / "train.arrow").open("ab").write(b"half a batch")
            writer, stops = TokenWriter(tmp_path, "train", vocab_size=1000, words=True, at=writer.written), stops + 1
            done = writer.written.documents
    with writer:
        pass
    assert stops > 5
    assert [path.read_bytes() for path in token_files(tmp_path, "train", words=True)] == expected


def test_offsets_are_mapped_not_read_and_marks_may_be_absent(tmp_path: Path) -> None:
    with TokenWriter(tmp_path, "train", vocab_size=97) as writer:
        writer.add([[1, 2], [3]])
    with TokenWriter(tmp_path, "validation", vocab_size=97, words=True):
        pass
    store = open_tokens(tmp_path, "train")
    assert type(store.sentence_offsets) is np.ndarray
    assert not store.sentence_offsets.flags.owndata
    assert not store.sentence_offsets.flags.writeable
    assert store.continues(0, 3) is None
    empty = open_tokens(tmp_path, "validation")
    assert (empty.document_offsets.tolist(), empty.sentence_offsets.tolist()) == ([0], [0])
    assert empty.tokens(0, 0).tolist() == []


def test_a_damaged_file_of_offsets_is_named(tmp_path: Path) -> None:
    write(tmp_path, make_documents(7))
    for name in ("train.documents.npy", "train.sentences.npy", "train.words.npy"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-9])
        with pytest.raises(UserError, match=f"{name} is not a whole file of numbers"):
            open_tokens(tmp_path, "train")
        (tmp_path / name).write_bytes(content)
