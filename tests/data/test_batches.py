"""Batches: the same instances at the same step, however they are cut, shared, resumed or prefetched."""

import pickle
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minibert.data.batches import Batch, PretrainingBatches, evaluation_batches, prefetch
from minibert.data.masking import MaskingSettings
from minibert.data.pairs import PairSettings, plan_pairs
from minibert.data.tokenizer import Vocabulary
from minibert.errors import UserError

PAD, UNK, CLS, SEP, MASK = range(5)
SIZE = 997
IDS = np.arange(SIZE)
WORDS = Vocabulary(
    size=SIZE, pad=PAD, unk=UNK, cls=CLS, sep=SEP, mask=MASK, special=IDS < 5, continuation=(IDS > 5) & (IDS % 5 == 0)
)


@dataclass(frozen=True)
class Store:
    """A corpus in memory: documents of sentences, of which only the lengths are given; ids are drawn once."""

    lengths: tuple[tuple[int, ...], ...]

    @cached_property
    def document_offsets(self):
        return np.cumsum([0, *map(len, self.lengths)])

    @cached_property
    def sentence_offsets(self):
        return np.cumsum([0, *(n for document in self.lengths for n in document)])

    @cached_property
    def stream(self):
        return np.random.default_rng(11).integers(5, SIZE, self.sentence_offsets[-1]).astype(np.uint16)

    def tokens(self, begin, end):
        return self.stream[begin:end]


STORE = Store(tuple(tuple(1 + (3 * d + 5 * s) % 13 for s in range(1 + d % 17)) for d in range(31)))


def make(store: Store = STORE, *, batch_size: int = 7, seed: int = 1, unit: str = "token") -> PretrainingBatches:
    pairs, masking = PairSettings(max_length=43), MaskingSettings(unit=unit)
    return PretrainingBatches(store, WORDS, batch_size=batch_size, seed=seed, pairs=pairs, masking=masking)


def rows(*batches: Batch) -> list[tuple]:
    """Each row of some batches without its padding, as something to compare."""
    found = []
    for batch in batches:
        for i, length in enumerate(batch["attention_mask"].sum(1).tolist()):
            texts = [batch[k][i, :length] for k in ("input_ids", "attention_mask", "token_type_ids", "labels")]
            found.append((*(tuple(t.tolist()) for t in texts), batch["next_sentence_label"][i].item()))
    return found


def originals(batch: Batch) -> torch.Tensor:
    return torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])


def test_a_row_is_cls_a_sep_b_sep_of_the_planned_texts():
    batches = make(batch_size=11)
    plan = plan_pairs(STORE, PairSettings(max_length=43), seed=1, epoch=0)
    for step in range(3):
        batch = batches[step]
        texts = originals(batch)
        for row in range(11):
            i = step * 11 + row
            first = STORE.tokens(plan.a_begin[i], plan.a_end[i]).tolist()
            second = STORE.tokens(plan.b_begin[i], plan.b_end[i]).tolist()
            expected = [CLS, *first, SEP, *second, SEP]
            padding = [0] * (texts.shape[1] - len(expected))
            assert texts[row].tolist() == expected + padding
            assert batch["attention_mask"][row].tolist() == [1] * len(expected) + padding
            assert batch["token_type_ids"][row].tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1) + padding
            assert batch["next_sentence_label"][row] == int(plan.is_random[i])


def test_everything_is_int64_and_padded_to_eights_within_the_limit():
    widths = set()
    for step in range(40):
        for batch in make(batch_size=5).micro_batches(step, size=2):
            assert {t.dtype for t in batch.values()} == {torch.int64}
            longest = int(batch["attention_mask"].sum(1).max())
            assert batch["input_ids"].shape[1] == min(-(-longest // 8) * 8, 43)
            widths.add(batch["input_ids"].shape[1])
            padding = batch["attention_mask"] == 0
            assert (batch["input_ids"][padding] == PAD).all()
            assert (batch["labels"][padding] == -100).all()
    assert 43 in widths
    assert len(widths) > 2


@given(
    batch_size=st.integers(1, 19),
    world=st.integers(1, 5),
    size=st.integers(1, 9) | st.none(),
    epoch=st.integers(1, 3),
    offset=st.integers(0, 60),
    unit=st.sampled_from(["token", "word"]),
)
@settings(max_examples=40, deadline=None)
def test_ranks_and_micro_batches_put_together_are_the_global_batch(batch_size, world, size, epoch, offset, unit):
    world = min(world, batch_size)
    whole = make(batch_size=batch_size, unit=unit)
    step = epoch * whole.steps_per_epoch + offset
    cut = make(batch_size=batch_size, unit=unit)  # a second run that begins here
    shares = [cut.micro_batches(step, rank=rank, world=world, size=size) for rank in range(world)]
    assert rows(*(batch for share in shares for batch in share)) == rows(whole[step])
    assert all(len(batch["labels"]) <= (size or batch_size) for share in shares for batch in share)
    counts = [sum(len(batch["labels"]) for batch in share) for share in shares]
    assert min(counts) >= 1
    assert max(counts) - min(counts) <= 1


def test_each_epoch_shows_every_pair_of_its_plan_once_in_a_new_order():
    batches = make(batch_size=1)
    sizes = [len(plan_pairs(STORE, PairSettings(max_length=43), seed=1, epoch=e)) for e in range(3)]
    assert batches.epoch_of(0) == 0
    ends = np.cumsum(sizes)
    for epoch in range(1, 3):
        assert batches.epoch_of(int(ends[epoch - 1]) - 1) == epoch - 1
        assert batches.epoch_of(int(ends[epoch - 1])) == epoch
    assert batches.steps_per_epoch == sizes[0]
    first, second = ([originals(batches[t])[0, 1].item() for t in range(e, e + 29)] for e in (0, sizes[0]))
    assert first != second


def test_a_batch_may_hold_the_end_of_one_epoch_and_the_whole_of_others():
    tiny = Store(((3, 4), (5,), (2, 2)))
    single = make(tiny, batch_size=1)
    assert rows(make(tiny, batch_size=23)[2]) == rows(*(single[t] for t in range(46, 69)))


def test_looking_back_and_forth_changes_nothing():
    there_and_back = make(batch_size=13)
    steps = [0, 40, 3, 25, 0, 40]
    seen = [rows(there_and_back[t]) for t in steps]
    assert seen == [rows(make(batch_size=13)[t]) for t in steps]
    assert there_and_back.steps_per_epoch == make(batch_size=13).steps_per_epoch


def test_masks_differ_between_equal_instances_and_between_epochs():
    same = Store(((30,), *[(29,)] * 61))
    batches = make(same, batch_size=62)
    masks = [tuple((label != -100).tolist()) for t in range(3) for label in batches[t]["labels"]]
    assert len(masks) == 186
    assert len(set(masks)) > 180


def test_other_seeds_give_other_batches_and_equal_ones_the_same():
    assert rows(make(seed=2)[5]) == rows(make(seed=2)[5])
    assert rows(make(seed=2)[5]) != rows(make(seed=3)[5])


def test_nothing_is_drawn_from_or_left_in_global_random_states():
    torch.manual_seed(3)
    np.random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = [rows(*b) for b in prefetch(make(), range(2, 5), rank=0, world=1, size=3, workers=1)]
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])
    torch.manual_seed(4)
    assert first == [rows(*b) for b in prefetch(make(), range(2, 5), rank=0, world=1, size=3, workers=1)]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_prefetched_batches_are_those_of_the_steps(workers):
    steps = range(17, 26)
    direct = [make().micro_batches(t, rank=1, world=2, size=2) for t in steps]
    fetched = list(prefetch(make(), steps, rank=1, world=2, size=2, workers=workers))
    assert [rows(*micro) for micro in fetched] == [rows(*micro) for micro in direct]
    assert [len(micro) for micro in fetched] == [2] * 9
    fetched[0][0]["input_ids"][0, 0] = 9  # a batch is the caller's to change


def test_prefetching_no_steps_gives_nothing():
    assert list(prefetch(make(), range(3, 3), rank=0, world=1, size=None, workers=2)) == []


def test_batches_travel_to_a_worker_without_their_plans():
    batches = make()
    fresh = len(pickle.dumps(batches))
    expected = rows(batches[90])
    assert len(pickle.dumps(batches)) < fresh + STORE.stream.nbytes + 1000
    assert rows(pickle.loads(pickle.dumps(batches))[90]) == expected


def test_more_processes_than_rows_are_refused():
    with pytest.raises(UserError, match="batch of 7 rows cannot be shared by 8 processes"):
        make().micro_batches(0, rank=0, world=8)
    with pytest.raises(UserError, match="8 processes"):
        next(prefetch(make(), range(3), rank=0, world=8, size=1, workers=2))


def test_a_corpus_of_one_document_is_refused_at_once():
    with pytest.raises(UserError, match="1 document"):
        make(Store(((3, 4, 5),)))


def evaluate(*, seed: int = 5, size: int = 4, **options) -> list[Batch]:
    pairs, masking = PairSettings(max_length=43), MaskingSettings()
    return list(evaluation_batches(STORE, WORDS, pairs=pairs, masking=masking, seed=seed, size=size, **options))


@pytest.mark.parametrize("limit", [None, 1, 37, 10_000])
@pytest.mark.parametrize("world", [1, 2, 5])
def test_evaluation_shows_each_instance_once_over_the_ranks(world, limit):
    pairs = len(plan_pairs(STORE, PairSettings(max_length=43), seed=5, epoch=0))
    shares = [evaluate(rank=rank, world=world, limit=limit) for rank in range(world)]
    shown = rows(*(batch for share in shares for batch in share))
    assert shown == rows(*evaluate(size=10_000))[:limit]
    assert len(shown) == min(limit or pairs, pairs)
    assert all(1 <= len(batch["labels"]) <= 4 for share in shares for batch in share)


def test_evaluation_is_always_the_same_and_another_for_another_seed():
    assert rows(*evaluate()) == rows(*evaluate(size=7))
    assert rows(*evaluate()) != rows(*evaluate(seed=6))
