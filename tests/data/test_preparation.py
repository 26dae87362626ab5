"""One corpus, however it is made: on more processes, in shards, killed again and again, or twice at once."""

import contextlib
import gzip
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
from test_corpus import documents_of, files_in, make_texts, open_both, write_texts

from minibert.data import pieces, token_writer
from minibert.data.corpus import Corpus, PrepareConfig, build_corpus, encode_shard
from minibert.data.random import generator
from minibert.data.sources import read_documents
from minibert.data.work_folder import work_folder
from minibert.errors import UserError

DOCUMENTS = 103
PIECE, BATCH = 2003, 499


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """About fifteen pieces instead of one, and twenty record batches."""
    monkeypatch.setattr(pieces, "PIECE_CHARACTERS", PIECE)
    monkeypatch.setattr(token_writer, "BATCH_TOKENS", BATCH)


@pytest.fixture
def config(tmp_path: Path) -> PrepareConfig:
    """Documents of which each ninth comes again, each seventh with a changed word, and one has no words."""
    texts = make_texts(DOCUMENTS, sentences=5)
    texts += [*texts[::9], *(text.replace(text.split()[4], "else", 1) for text in texts[::7]), "\u200d"]
    source = write_texts(tmp_path / "texts.txt", texts)
    return PrepareConfig([str(source)], str(tmp_path / "corpus"), vocab_size=211, validation_share=0.2, processes=1)


@pytest.fixture
def expected(config: PrepareConfig) -> dict[str, bytes]:
    """The corpus that nobody disturbed."""
    reference = replace(config, output=f"{config.output}-reference")
    build_corpus(reference)
    return files_in(reference.output)


def work_of(config: PrepareConfig) -> Path:
    return work_folder(Path(config.output)).path


# The same bytes


def test_near_copies_of_held_out_documents_are_not_trained_on(config: PrepareConfig) -> None:
    description = build_corpus(config).description
    train, validation = open_both(config.output)
    held_out, trained_on = documents_of(validation), documents_of(train)
    dropped = description["counts"]["dropped"]
    assert dropped["near_copies_of_validation"] >= 3
    assert dropped.pop("sentences_without_tokens") == 1
    assert len(held_out) + len(trained_on) + sum(dropped.values()) == DOCUMENTS + 12 + 15 + 1
    for document in trained_on:
        for other in held_out:
            same = {tuple(ids) for ids in document} & {tuple(ids) for ids in other}
            assert 2 * len(same) <= max(len(document), len(other))
    assert (
        build_corpus(replace(config, deduplicate=False, overwrite=True)).description["counts"]["dropped"][
            "near_copies_of_validation"
        ]
        >= dropped["near_copies_of_validation"]
    )


def test_many_near_copies_are_warned_of_and_too_many_are_refused(config: PrepareConfig, tmp_path: Path) -> None:
    texts = make_texts(DOCUMENTS)
    write_texts(tmp_path / "texts.txt", [*texts, *(text.replace(".", "!") for text in texts)])
    warnings = build_corpus(config).description["warnings"]
    assert any("of the training documents" in warning and "were dropped" in warning for warning in warnings)
    write_texts(tmp_path / "texts.txt", [texts[0] + mark for mark in ("!", "?", ";", ",", ":")])
    with pytest.raises(UserError, match=r"near copies of held-out ones .*validation_share: 0"):
        build_corpus(replace(config, overwrite=True, validation_share=0.4))
    assert not work_of(config).exists()


def test_two_processes_make_the_same_bytes(config: PrepareConfig, expected: dict[str, bytes]) -> None:
    assert build_corpus(replace(config, processes=2)).is_new
    assert files_in(config.output) == expected
    assert not work_of(config).exists()


@pytest.mark.parametrize("first", [0, 1])
def test_shards_make_the_same_bytes(config: PrepareConfig, expected: dict[str, bytes], first: int) -> None:
    missing = [encode_shard(replace(config, shard=f"{first + i}/3")).missing for i in (1, 0, 2)]
    assert [len(left) for left in missing] == [2, 1, 0]
    assert build_corpus(replace(config, merge=True)).is_new
    assert files_in(config.output) == expected
    assert encode_shard(replace(config, shard="1/3")) == (0, [])


def test_the_words_of_chinese_text_are_marked_in_the_corpus(config: PrepareConfig, tmp_path: Path) -> None:
    pytest.importorskip("rjieba", reason="needs the zh extra")
    texts = [f"我们使用语言模型{number}次。北京大学很好。" * (number % 5 + 1) for number in range(200)]
    write_texts(tmp_path / "texts.txt", texts)
    build_corpus(replace(config, mark_words=True, language="zh", validation_share=0))
    train = Corpus.open(config.output, "train")
    marks = train.continues(0, int(train.sentence_offsets[-1]))
    assert marks is not None
    vocabulary = (Path(config.output) / "tokenizer" / "vocab.txt").read_text(encoding="utf-8").split("\n")
    tokens = np.array(vocabulary)[train.tokens(0, len(marks))]
    assert marks[tokens == "言"].all()
    assert not marks[tokens == "语"].any()


# Killed, interrupted, or without disk


def die(config: PrepareConfig, at: int) -> None:
    """Build a corpus, and be killed when something is brought to disk for the n-th time."""
    fsync, calls = os.fsync, iter(range(at))

    def count(descriptor: int) -> None:
        if next(calls, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    os.fsync = count
    pieces.PIECE_CHARACTERS, token_writer.BATCH_TOKENS = PIECE, BATCH
    build_corpus(config)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_again_and_again_makes_the_same_bytes(
    config: PrepareConfig, expected: dict[str, bytes], tmp_path: Path, seed: int
) -> None:
    rng, kills = generator(seed, 17), 0
    while (
        processes._start(die, (config, int(3 + rng.exponential(9 + 9 * kills))), tmp_path / "said", {}).wait().code != 0
    ):
        kills += 1
        assert not Path(config.output).exists() or kills > 3
    assert kills > 2
    assert files_in(config.output) == expected
    assert build_corpus(config).is_new is False  # it may have been killed when all was in place
    assert not work_of(config).exists()


def test_what_is_encoded_is_kept_when_the_user_interrupts_or_the_disk_is_full(
    config: PrepareConfig, expected: dict[str, bytes]
) -> None:
    stages: list[str] = []

    def fail_late(items: Iterable[Any], stage: str, total: int | None) -> Iterator[Any]:
        stages.append(stage)
        for number, item in enumerate(items):
            if number == len(stages) * 29:
                raise OSError(28, "No space left on device") if len(stages) == 2 else KeyboardInterrupt
            yield item

    stages.append("counting words")
    tokenizer = replace(config, tokenizer=f"{config.output}-reference")
    with pytest.raises(UserError, match="No space left on device"):
        build_corpus(tokenizer, track=fail_late)
    before = files_in(work_of(config) / "pieces")
    with pytest.raises(KeyboardInterrupt):
        build_corpus(tokenizer, track=fail_late)
    after = files_in(work_of(config) / "pieces")
    assert 0 < len(before) < len(after)
    assert before.items() <= after.items()
    build_corpus(tokenizer)
    assert stages == ["counting words", "encoding", "encoding"]
    assert {name: content for name, content in files_in(config.output).items() if "train" in name} == {
        name: content for name, content in expected.items() if "train" in name
    }


def test_what_runs_of_other_settings_left_is_removed(config: PrepareConfig, expected: dict[str, bytes]) -> None:
    encode_shard(replace(config, shard="1/3", vocab_size=199))
    assert work_of(config).exists()
    build_corpus(config)
    assert files_in(config.output) == expected
    work_of(config).mkdir()
    (work_of(config) / "rest").touch()
    assert not build_corpus(config).is_new
    assert not work_of(config).exists()


def test_a_corpus_that_was_moved_aside_when_its_replacement_was_killed_comes_back(config: PrepareConfig) -> None:
    build_corpus(config)
    work_of(config).mkdir()
    Path(config.output).rename(work_of(config) / "replaced")
    assert not build_corpus(config, track=refuse_to_read).is_new


def refuse_to_read(items: Iterable[Any], stage: str, total: int | None) -> Iterator[Any]:
    raise AssertionError(f"reading began: {stage}")


# Several at once


def build(config: PrepareConfig) -> None:
    pieces.PIECE_CHARACTERS, token_writer.BATCH_TOKENS = PIECE, BATCH
    print(build_corpus(config, notify=print).is_new)


def test_of_several_that_make_the_same_corpus_at_once_one_makes_it(
    config: PrepareConfig, expected: dict[str, bytes], tmp_path: Path
) -> None:
    ended = processes.call_all(build, config, said=tmp_path / "said", world=3)
    assert [run.code for run in ended] == [0, 0, 0]
    assert sorted(run.out.split("\n")[-2] for run in ended) == ["False", "False", "True"]
    assert files_in(config.output) == expected
    assert not work_of(config).exists()


def encode_own(config: PrepareConfig) -> None:
    pieces.PIECE_CHARACTERS, token_writer.BATCH_TOKENS = PIECE, BATCH
    encode_shard(replace(config, shard=f"{os.environ['RANK']}/3"))


def test_shards_may_run_at_once(config: PrepareConfig, expected: dict[str, bytes], tmp_path: Path) -> None:
    assert [run.code for run in processes.call_all(encode_own, config, said=tmp_path / "said", world=3)] == [0, 0, 0]
    build_corpus(replace(config, merge=True), track=lambda items, stage, total: items if stage == "merging" else 1 / 0)
    assert files_in(config.output) == expected


def test_a_merge_names_the_shards_that_are_missing(config: PrepareConfig) -> None:
    with pytest.raises(UserError, match="nothing to merge"):
        build_corpus(replace(config, merge=True))
    encode_shard(replace(config, shard="2/5"))
    encode_shard(replace(config, shard="5/5"))
    with pytest.raises(
        UserError, match="3 of 5 shards are missing or not complete: --shard 1/5, --shard 3/5, --shard 4/5"
    ):
        build_corpus(replace(config, merge=True))
    assert work_of(config).exists()


@pytest.mark.parametrize("shard", ["3", "4/3", "1/0", "-1/3", "1 / 3", ""])
def test_a_shard_that_is_no_part_of_a_whole_is_refused(config: PrepareConfig, shard: str) -> None:
    with pytest.raises(UserError, match=f"shard is {shard}; expected i/n"):
        replace(config, shard=shard)


# Room


class Disk:
    """The most bytes that the files of a corpus and its work folder had at any moment when an item was read."""

    def __init__(self, config: PrepareConfig) -> None:
        self.most, self._folders = 0, (work_of(config), Path(config.output))

    def track(self, items: Iterable[Any], stage: str, total: int | None) -> Iterator[Any]:
        for item in items:
            self.most = max(self.most, sum(size(path) for folder in self._folders for path in folder.rglob("*")))
            yield item


def size(path: Path) -> int:
    """The bytes of a file; 0 where it is none, or is gone by now."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size if path.is_file() else 0
    return 0


def test_the_disk_never_holds_much_more_than_the_text(
    config: PrepareConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_CHARACTERS", 20_011)
    config = replace(config, vocab_size=1009)
    text, disk = write_texts(tmp_path / "texts.txt", make_texts(499, sentences=17)).stat().st_size, Disk(config)
    build_corpus(config, track=disk.track)
    assert 0.7 * text < disk.most < 1.2 * text


@pytest.mark.slow
@pytest.mark.parametrize(("name", "language"), [("chinese", "zh"), ("technical_en", "en")])
def test_the_disk_never_holds_much_more_than_real_text(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, language: str
) -> None:
    monkeypatch.undo()
    source = tmp_path / f"{name}.jsonl"
    source.write_bytes(gzip.decompress((shared / "text" / f"{name}.jsonl.gz").read_bytes()))
    config = PrepareConfig([str(source)], str(tmp_path / "corpus"), language=language)
    disk = Disk(config)
    text = sum(len(document.text.encode()) for document in read_documents([str(source)]))
    build_corpus(config, track=disk.track)
    assert 0.3 * text < disk.most < 1.2 * text
