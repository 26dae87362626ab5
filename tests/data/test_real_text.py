"""Real text from one end to the other: rows that are full, labels that are even, masks in their shares."""

from pathlib import Path

import numpy as np
import pytest

from minibert.data.batches import Cursor, PretrainingBatches, Request
from minibert.data.blocks import Blocks
from minibert.data.corpus import Corpus, PrepareConfig, build_corpus
from minibert.data.pairs import PairSettings, Rows, plan_block
from minibert.data.tokenizer import Vocabulary, load_tokenizer, vocabulary

NAMES = {"general_en": "en", "imdb_train_en": "en", "technical_en": "en", "chinese": "zh"}


@pytest.fixture(scope="module", params=NAMES)
def text(request: pytest.FixtureRequest, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of real text."""
    source, folder = shared / "text" / f"{request.param}.jsonl.gz", tmp_path_factory.mktemp("real") / request.param
    build_corpus(PrepareConfig([str(source)], str(folder), language=NAMES[request.param], vocab_size=8192))
    return folder


def plans(corpus: Corpus, length: int) -> list[Rows]:
    """All blocks of an epoch."""
    blocks = Blocks(corpus, seed=2)
    return [plan_block(blocks, PairSettings(max_length=length), number) for number in range(blocks.count)]


def documents(corpus: Corpus, positions: np.ndarray) -> np.ndarray:
    """The document in which each position of the token stream lies."""
    return np.searchsorted(corpus.sentence_offsets[corpus.document_offsets], positions, side="right")


@pytest.mark.slow
@pytest.mark.parametrize("length", [128, 512])
def test_rows_are_full_and_half_of_the_pairs_are_from_two_documents(text: Path, length: int) -> None:
    corpus = Corpus.open(text, "train")
    rows = plans(corpus, length)
    assert sum(plan.lengths.sum() for plan in rows) >= 0.98 * length * sum(map(len, rows))
    label = np.concatenate([plan.label for plan in rows])
    assert label.mean() == pytest.approx(0.5, abs=0.01)
    first, second = (documents(corpus, np.concatenate([getattr(p, n) for p in rows])) for n in ("a_begin", "b_begin"))
    np.testing.assert_array_equal(first != second, label == 1)


@pytest.mark.slow
def test_of_two_hundred_thousand_targets_four_fifths_are_masked(text: Path) -> None:
    words = vocabulary(load_tokenizer(text))
    batches = PretrainingBatches(Corpus.open(text, "train"), words, seed=3)
    kept = masked = replaced = 0
    cursor = Cursor()
    while kept + masked + replaced < 200_000:
        batch = batches[Request(0, cursor, 512, 128, 0.15)]
        cursor, _ = batches.advance(cursor, 512, 128)
        ids, labels = batch["input_ids"].numpy(), batch["labels"].numpy()
        check_specials(ids, labels, words)
        chosen = labels != -100
        masked += int((ids[chosen] == words.mask).sum())
        kept += int((ids[chosen] == labels[chosen]).sum())
        replaced += int(((ids != words.mask) & (ids != labels) & chosen).sum())
    shares = np.array([masked, replaced, kept]) / (masked + replaced + kept)
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.004)


def check_specials(ids: np.ndarray, labels: np.ndarray, words: Vocabulary) -> None:
    """No special token is predicted, and none but [MASK] is put in the place of a word."""
    chosen = labels != -100
    assert not words.special[labels[chosen]].any()
    put = ids[chosen & (ids != words.mask)]
    assert not words.special[put].any()
