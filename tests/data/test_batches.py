"""Batches: the same rows at the same place, however they are cut, shared, resumed or prefetched."""

import gc
import itertools
import multiprocessing
import pickle
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import CLS, MASK, PAD, SEP, WORDS, Store, like_prose, unlike

from minibert.data import blocks, packing
from minibert.data.batches import Batch, Cursor, PretrainingBatches, Request, evaluation_batches
from minibert.data.blocks import Blocks
from minibert.data.masking import MaskingSettings
from minibert.data.pairs import PairSettings, plan_block
from minibert.data.prefetch import prefetch
from minibert.errors import UserError

STORE = like_prose(sentences=1511)
LENGTH = 43
BLOCKS = 6
PACKED = PairSettings(max_length=LENGTH)
PADDED = PairSettings(max_length=LENGTH, packed=False)
SETTINGS = {
    "packed": PACKED,
    "padded": PADDED,
    "swapped": PairSettings(max_length=LENGTH, objective="sentence_order"),
    "single": PairSettings(max_length=LENGTH, objective="none"),
}


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    """Six blocks an epoch, of eight lanes each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", 251)
        patch.setattr(packing, "LANE", 31)
        yield


def make(
    store: Store = STORE, *, seed: int = 1, unit: str = "token", pairs: PairSettings = PACKED
) -> PretrainingBatches:
    return PretrainingBatches(store, WORDS, seed=seed, pairs=pairs, masking=MaskingSettings(unit=unit))


def ask(block: int, row: int, rows: int, *, max_length: int = LENGTH, probability: float = 0.15) -> Request:
    return Request(0, Cursor(block, row), rows, max_length, probability)


def same(left: Batch, right: Batch) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


def joined(batches: list[Batch]) -> Batch:
    """Batches, one below the other; those that are padded to a common width."""
    width = max(batch["input_ids"].shape[1] for batch in batches)
    filled = {"input_ids": PAD, "labels": -100, "attention_mask": 0, "token_type_ids": 0}

    def fill(key: str, value: torch.Tensor) -> torch.Tensor:
        if key not in filled:
            return value
        return torch.nn.functional.pad(value, (0, width - value.shape[1]), value=filled[key])

    return {key: torch.cat([fill(key, batch[key]) for batch in batches]) for key in batches[0]}


def originals(batch: Batch) -> torch.Tensor:
    return torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_row_is_the_texts_of_its_plan_side_by_side(kind):
    pairs = SETTINGS[kind]
    plan = plan_block(Blocks(STORE, 1), pairs, 0)
    batch = make(pairs=pairs)[ask(0, 5, 61)]
    texts = originals(batch)
    for row in range(61):
        ids, types, positions, sequences, columns, labels = [], [], [], [], [], []
        for number, i in enumerate(range(plan.first_pair[5 + row], plan.first_pair[6 + row])):
            first = STORE.tokens(plan.a_begin[i], plan.a_end[i]).tolist()
            second = STORE.tokens(plan.b_begin[i], plan.b_end[i]).tolist()
            instance = [CLS, *first, SEP, *second, SEP] if second else [CLS, *first, SEP]
            columns.append(len(ids))
            labels.append(plan.label[i])
            ids += instance
            types += [0] * (len(first) + 2) + [1] * (len(instance) - len(first) - 2)
            positions += range(len(instance))
            sequences += [number + 1] * len(instance)
        padding = [0] * (texts.shape[1] - len(ids))
        assert texts[row].tolist() == ids + padding
        assert batch["attention_mask"][row].tolist() == [1] * len(ids) + padding
        assert batch["token_type_ids"][row].tolist() == types + padding
        if kind == "padded":
            assert batch["next_sentence_label"][row].tolist() == labels[0]
        else:
            assert batch["position_ids"][row].tolist() == positions + padding
            assert batch["sequence_ids"][row].tolist() == sequences + padding
        if kind in ("packed", "swapped"):
            unused = LENGTH // 8 - len(labels)
            assert batch["cls_positions"][row].tolist() == columns + [0] * unused
            assert batch["next_sentence_label"][row].tolist() == labels + [-100] * unused


def test_keys_and_shapes_are_the_same_for_all_packed_batches():
    common = {"input_ids", "attention_mask", "token_type_ids", "labels"}
    packed = make()
    for batch in (packed[ask(0, 0, 7)], packed[ask(3, 11, 7)]):
        assert set(batch) == common | {"position_ids", "sequence_ids", "cls_positions", "next_sentence_label"}
        assert {tuple(t.shape) for t in batch.values()} == {(7, LENGTH), (7, LENGTH // 8)}
        assert {t.dtype for t in batch.values()} == {torch.int64}
    assert set(make(pairs=SETTINGS["single"])[ask(0, 0, 7)]) == common | {"position_ids", "sequence_ids"}
    assert set(make(pairs=PADDED)[ask(0, 0, 7)]) == common | {"next_sentence_label"}
    assert set(make(pairs=PairSettings(objective="none", packed=False))[ask(0, 0, 7)]) == common


def test_padded_rows_are_as_wide_as_the_longest_in_eights_within_the_limit():
    widths = set()
    batches = make(pairs=PADDED)
    for step in range(20):
        for batch in batches.micro_batches(ask(0, step * 5, 5), size=2):
            longest = int(batch["attention_mask"].sum(1).max())
            assert batch["input_ids"].shape[1] == min(-(-longest // 8) * 8, LENGTH)
            widths.add(batch["input_ids"].shape[1])
            assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()
    assert LENGTH in widths
    assert len(widths) > 2


cuts = {
    "epoch": st.integers(1, 3),
    "block": st.integers(0, BLOCKS - 1),
    "row": st.integers(0, 200),
    "rows": st.integers(1, 90),
    "world": st.integers(1, 3),
    "size": st.integers(1, 40) | st.none(),
    "max_length": st.sampled_from([LENGTH, 23]),
    "kind": st.sampled_from(list(SETTINGS)),
    "unit": st.sampled_from(["token", "word", "span"]),
}


@given(**cuts)
@settings(max_examples=40, deadline=None)
def test_ranks_and_micro_batches_put_together_are_the_global_batch(
    epoch, block, row, rows, world, size, max_length, kind, unit
):
    world = min(world, rows)
    request = ask(epoch * BLOCKS + block, row, rows, max_length=max_length)
    whole = make(pairs=SETTINGS[kind], unit=unit)[request]
    cut = make(pairs=SETTINGS[kind], unit=unit)  # a second run that begins here
    shares = [cut.micro_batches(request, rank=rank, world=world, size=size) for rank in range(world)]
    assert same(joined([batch for share in shares for batch in share]), whole)
    counts = [sum(len(batch["labels"]) for batch in share) for share in shares]
    assert max(counts) - min(counts) <= 1
    most = rows if size is None else size * LENGTH // max_length
    assert all(len(batch["labels"]) <= most for share in shares for batch in share)


@given(**{**cuts, "workers": st.sampled_from([0, 2])})
@settings(max_examples=12, deadline=None)
def test_prefetched_batches_are_those_of_the_requests(
    epoch, block, row, rows, world, size, max_length, kind, unit, workers
):
    world = min(world, rows)
    request = ask(epoch * BLOCKS + block, row, rows, max_length=max_length)
    requests = [request._replace(step=n, cursor=Cursor(request.cursor.block + n, row)) for n in range(5)]
    batches = make(pairs=SETTINGS[kind], unit=unit)
    fetched = list(prefetch(batches, iter(requests), rank=world - 1, world=world, size=size, workers=workers))
    assert [request for request, _ in fetched] == requests
    for request, micro in fetched:
        direct = make(pairs=SETTINGS[kind], unit=unit).micro_batches(request, rank=world - 1, world=world, size=size)
        for batch in micro:
            places = batch.pop("masked_positions")
            labelled = (batch["labels"].flatten() != -100).nonzero().squeeze(1)
            assert places[: len(labelled)].equal(labelled)
            assert len(places) % 8 == 0
            assert places[len(labelled) :].eq(0).all()
            assert batch["labels"][0, 0] == -100
        assert all(same(a, b) for a, b in zip(micro, direct, strict=True))
    fetched[0][1][0]["input_ids"][0, 0] = 9  # a batch is the caller's to change


@given(rows=st.lists(st.integers(1, 300), min_size=1, max_size=9), max_length=st.sampled_from([LENGTH, 23]))
@settings(max_examples=10, deadline=None)
def test_walking_step_by_step_and_at_once_leads_to_the_same_place(rows, max_length):
    batches = make()
    place, tokens = Cursor(), 0
    for step in rows:
        place, more = batches.advance(place, step, max_length)
        tokens += more
    assert make().advance(Cursor(), sum(rows), max_length) == (place, tokens)
    plans = [len(plan_block(Blocks(STORE, 1), PairSettings(max_length=max_length), b)) for b in range(place.block + 1)]
    assert sum(plans[: place.block]) + place.row == sum(rows)
    assert 0 <= place.row < plans[place.block]
    assert batches.epochs(place, max_length) == pytest.approx((place.block + place.row / plans[-1]) / BLOCKS)


def test_the_tokens_of_a_request_are_counted_without_making_it():
    batches = make(pairs=PADDED)
    request = ask(2, 31, 400)
    assert batches.advance(request.cursor, 400, LENGTH)[1] == int(batches[request]["attention_mask"].sum())


def test_another_length_goes_on_at_the_next_block():
    assert make().skip(Cursor(3, 1)) == Cursor(4, 0)
    assert make().skip(Cursor(3, 0)) == Cursor(3, 0)
    assert make()[ask(4, 0, 7, max_length=23)]["input_ids"].shape == (7, 23)


def test_micro_batches_of_shorter_rows_have_the_more_of_them():
    assert [len(b["labels"]) for b in make().micro_batches(ask(0, 0, 20, max_length=21), size=4)] == [8, 8, 4]
    assert [len(b["labels"]) for b in make().micro_batches(ask(0, 0, 20), size=8)] == [8, 8, 4]


def test_a_batch_may_hold_the_end_of_one_epoch_and_the_whole_of_others():
    tiny = unlike([3, 4], [5], [2, 2])
    single = make(tiny, pairs=PADDED)
    place, rows = Cursor(), []
    for _ in range(69):
        rows.append(single[Request(0, place, 1, LENGTH, 0.15)])
        place, _ = single.advance(place, 1, LENGTH)
    start, _ = single.advance(Cursor(), 46, LENGTH)
    assert same(make(tiny, pairs=PADDED)[Request(0, start, 23, LENGTH, 0.15)], joined(rows[46:]))


def test_looking_back_and_forth_changes_nothing():
    there_and_back = make()
    places = [(0, 0), (9, 3), (1, 40), (13, 2), (0, 0), (9, 3)]
    for block, row in places:
        assert same(there_and_back[ask(block, row, 13)], make()[ask(block, row, 13)])


def test_masks_differ_between_equal_rows_and_between_epochs():
    equal = Store([[[7] * 30]] * 62)
    batches = make(equal, pairs=PADDED)
    masks = [tuple((label != -100).tolist()) for epoch in range(3) for label in batches[ask(epoch, 0, 62)]["labels"]]
    assert len(masks) == 186
    assert len(set(masks)) > 180


def test_a_share_of_the_tokens_is_masked_as_the_request_says():
    batches = make(like_prose(sentences=5003), pairs=PairSettings(max_length=211))
    for probability in (0.15, 0.4):
        batch = batches[ask(0, 0, 60, max_length=211, probability=probability)]
        share = (batch["labels"] != -100).sum() / batch["attention_mask"].sum()
        assert abs(float(share) - probability) < 0.01


class Marked(Store):
    """A corpus that marks every token with an even id as going on with the word before it."""

    def continues(self, begin, end):
        return self.tokens(begin, end) % 2 == 0


class Unmarked(Store):
    """A corpus that could mark words, and does not."""

    def continues(self, begin, end):
        return None


def test_words_are_those_that_the_corpus_marks_or_else_those_of_the_vocabulary():
    def words(store: Store, continues) -> bool:
        """Whether all pieces of a word are to be guessed, or none."""
        batch = make(store, unit="word")[ask(0, 0, 100)]
        ids, chosen = originals(batch).numpy(), batch["labels"].numpy() != -100
        ordinary = ids > MASK
        joint = continues(ids[:, 1:]) & ordinary[:, 1:] & ordinary[:, :-1]
        return bool((chosen[:, 1:] == chosen[:, :-1])[joint].all())

    def even(ids):
        return ids % 2 == 0

    documents = STORE.documents
    assert words(Marked(documents), even)
    assert not words(Marked(documents), WORDS.continuation.take)
    assert words(Unmarked(documents), WORDS.continuation.take)
    assert words(STORE, WORDS.continuation.take)
    assert not words(STORE, even)


def test_other_seeds_give_other_batches_and_equal_ones_the_same():
    request = ask(5, 0, 31)
    assert same(make(seed=2)[request], make(seed=2)[request])
    assert not torch.equal(originals(make(seed=2)[request]), originals(make(seed=3)[request]))


def test_nothing_is_drawn_from_or_left_in_global_random_states():
    requests = [ask(block, 3, 9) for block in range(3)]

    def fetch() -> list[Batch]:
        return [b for _, micro in prefetch(make(), requests, rank=0, world=1, size=3, workers=1) for b in micro]

    torch.manual_seed(3)
    np.random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = fetch()
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])
    torch.manual_seed(4)
    assert all(same(a, b) for a, b in zip(first, fetch(), strict=True))


def test_requests_are_taken_as_they_are_needed_and_workers_end_with_the_iterator():
    taken = itertools.count()

    def endless() -> Iterator[Request]:
        for step in taken:
            yield ask(step % 7, 0, 3)._replace(step=step)

    fetched = prefetch(make(), endless(), rank=0, world=1, size=None, workers=2)
    assert [next(fetched)[0].step for _ in range(3)] == [0, 1, 2]
    assert next(taken) < 3 + 2 * 2 + 2
    assert len(multiprocessing.active_children()) == 2
    fetched.close()
    gc.collect()
    assert multiprocessing.active_children() == []


def test_prefetching_no_requests_gives_nothing():
    assert list(prefetch(make(), [], rank=0, world=1, size=None, workers=2)) == []


def test_batches_travel_to_a_worker_without_their_plans():
    batches = make()
    fresh = len(pickle.dumps(batches))
    expected = batches[ask(9, 0, 17)]
    assert len(pickle.dumps(batches)) < len(pickle.dumps(STORE)) + 5000
    assert len(pickle.dumps(batches)) == fresh
    assert same(pickle.loads(pickle.dumps(batches))[ask(9, 0, 17)], expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_more_processes_than_rows_are_refused(workers):
    with pytest.raises(UserError, match="batch of 7 rows cannot be shared by 8 processes"):
        make().micro_batches(ask(0, 0, 7), rank=0, world=8)
    with pytest.raises(
        UserError, match=r"^a batch of 7 rows cannot be shared by 8 processes; each needs one at least$"
    ):
        next(prefetch(make(), [ask(0, 0, 7)], rank=0, world=8, size=1, workers=workers))


def test_a_corpus_with_too_little_for_the_objective_is_refused():
    with pytest.raises(UserError, match="1 document"):
        make(unlike([3, 4, 5]))
    pairs = PairSettings(objective="sentence_order")
    with pytest.raises(UserError, match=r"no text for the objective sentence_order; .* 2 tokens"):
        make(unlike([1], [1], [1]), pairs=pairs).advance(Cursor(), 1, 128)


def evaluate(*, seed: int = 5, size: int = 4, **options) -> list[Batch]:
    masking = MaskingSettings()
    return list(evaluation_batches(STORE, WORDS, pairs=PADDED, masking=masking, seed=seed, size=size, **options))


@pytest.mark.parametrize(("limit", "world"), [(None, 2), (1, 5), (37, 3), (10_000, 1)])
def test_evaluation_shows_each_row_once_over_the_ranks(limit, world):
    rows = sum(len(plan_block(Blocks(STORE, 5), PADDED, block)) for block in range(BLOCKS))
    shares = [evaluate(rank=rank, world=world, limit=limit, size=31) for rank in range(world)]
    assert all(1 <= len(batch["labels"]) <= 31 for share in shares for batch in share)
    shown, whole = joined([batch for share in shares for batch in share]), joined(evaluate(size=10_000))
    assert len(shown["labels"]) == min(limit or rows, rows)
    assert same(joined([shown, whole]), joined([{k: v[:limit] for k, v in whole.items()}, whole]))


def test_evaluation_is_always_the_same_and_another_for_another_seed():
    assert same(joined(evaluate(limit=50)), joined(evaluate(limit=50, size=7)))
    assert not torch.equal(joined(evaluate(limit=50))["labels"], joined(evaluate(limit=50, seed=6))["labels"])


class Line:
    """Offsets that are computed when they are asked for, as a mapped file reads them: about `step` apart."""

    def __init__(self, count: int, step: int) -> None:
        self._count, self._step = count, step

    def __len__(self) -> int:
        return self._count + 1

    def __getitem__(self, key):
        numbers = np.arange(*key.indices(len(self))) if isinstance(key, slice) else np.asarray(key)
        return numbers * self._step + numbers * 7 % (self._step - 1) * (numbers < self._count)


class Huge:
    """10^7 documents of 10^8 sentences of 2 * 10^9 tokens."""

    document_offsets, sentence_offsets = Line(10**7, 10), Line(10**8, 20)

    def tokens(self, begin, end):
        return 5 + np.arange(begin, end) * 2_654_435_761 % 991


@pytest.mark.slow
def test_a_run_on_a_hundred_million_sentences_resumes_at_once_and_in_little_memory(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 65_536)
    monkeypatch.setattr(packing, "LANE", 1024)
    tracemalloc.start()
    start = time.perf_counter()
    batches = make(Huge(), pairs=PairSettings(max_length=512))
    batch = batches[Request(0, Cursor(3 * 1526 + 1009, 71), 256, 512, 0.15)]
    seconds, (_, most) = time.perf_counter() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert batch["attention_mask"].sum() > 0.98 * 256 * 512
    assert 3.6 < batches.epochs(Cursor(3 * 1526 + 1009, 71), 512) < 3.7
    assert seconds < 5
    assert most < 150 * 2**20
