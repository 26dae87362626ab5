"""Losses are sums with counts: by hand, against torch, and the same however a batch is cut."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from minibert.objectives import (
    IGNORED,
    Measure,
    accuracy,
    cross_entropy,
    pretraining_measures,
    sequence_labels,
    squared_error,
)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_cross_entropy_is_the_sum_of_negative_log_probabilities_over_the_counted_labels():
    logits = torch.tensor([[[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]], [[1.0, 1.0, 1.0], [0.0, 5.0, 0.0]]])
    labels = torch.tensor([[2, IGNORED], [1, 0]])
    by_hand = [
        math.log(1 + math.e + math.e**2) - 2,
        math.log(3),
        math.log(2 + math.e**5),
    ]
    measure = cross_entropy(logits, labels)
    assert measure.total.item() == pytest.approx(sum(by_hand), rel=1e-6)
    assert measure.count.item() == 3
    assert measure.mean.item() == pytest.approx(sum(by_hand) / 3, rel=1e-6)


def test_the_mean_cross_entropy_is_that_of_torch():
    logits, labels = torch.randn(5, 7, 11), torch.randint(11, (5, 7))
    labels[torch.rand(5, 7) < 0.5] = IGNORED
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    assert cross_entropy(logits, labels).mean.item() == pytest.approx(expected.item(), rel=1e-6)


def test_token_0_is_a_label_like_any_other():
    measure = cross_entropy(torch.zeros(1, 3, 7), torch.tensor([[IGNORED, 0, IGNORED]]))
    assert measure.count.item() == 1
    assert measure.total.item() == pytest.approx(math.log(7))


def test_where_nothing_is_to_be_predicted_the_loss_and_its_gradient_are_zero():
    for shape in ((2, 5), (0, 5)):
        logits = torch.randn(*shape, 7, requires_grad=True)
        measure = cross_entropy(logits, torch.full(shape, IGNORED))
        measure.mean.backward()
        assert measure.mean.item() == 0
        assert measure.count.item() == 0
        assert logits.grad.eq(0).all()


@pytest.mark.parametrize("label", [7, -1, -99])
def test_a_label_that_is_no_class_is_refused_with_the_range(label):
    with pytest.raises(ValueError, match=f"labels hold {label}, expected 0 to 6, or -100 for what is ignored"):
        cross_entropy(torch.randn(2, 7), torch.tensor([0, label]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_of_half_precision_logits_is_summed_in_float32(dtype):
    logits, labels = torch.randn(4001, 7).to(dtype), torch.randint(7, (4001,))
    measure = cross_entropy(logits, labels)
    assert measure.total.dtype == torch.float32
    expected = F.cross_entropy(logits.double(), labels, reduction="sum")
    assert measure.total.item() == pytest.approx(expected.item(), rel=1e-5)


def test_sums_and_counts_of_micro_batches_add_up_to_those_of_the_batch():
    logits, labels = torch.randn(7, 11, 13), torch.randint(13, (7, 11))
    labels[torch.rand(7, 11) < 0.7] = IGNORED
    whole = cross_entropy(logits, labels)
    parts = [cross_entropy(*part) for part in zip(logits.split(2), labels.split(2), strict=True)]
    assert sum(part.total for part in parts).item() == pytest.approx(whole.total.item(), rel=1e-6)
    assert sum(part.count for part in parts) == whole.count


def test_one_target_with_loss_10_and_nine_with_loss_2_have_a_mean_of_2_8():
    first, second = Measure(torch.tensor(10.0), torch.tensor(1)), Measure(torch.tensor(18.0), torch.tensor(9))
    together = Measure(first.total + second.total, first.count + second.count)
    assert together.mean.item() == pytest.approx(2.8)


def test_accuracy_counts_labels_whose_logit_is_the_largest():
    logits = torch.tensor([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])
    measure = accuracy(logits, torch.tensor([[1, 1], [IGNORED, 1]]))
    assert (measure.total.item(), measure.count.item()) == (2, 3)


def test_squared_error_is_the_sum_of_squares_of_equal_shapes():
    measure = squared_error(torch.tensor([1.0, 4.0, 2.5]), torch.tensor([3.0, 4.0, 2.0]))
    assert (measure.total.item(), measure.count.item()) == (4.25, 3)
    with pytest.raises(ValueError, match=r"predictions are \[3, 1\], targets \[3\]"):
        squared_error(torch.zeros(3, 1), torch.zeros(3))


def test_whole_labels_are_classes_and_others_are_numbers():
    logits = torch.randn(5, 3)
    assert sequence_labels(logits, torch.tensor([0, 1, 2, 0, 1])).total.item() == pytest.approx(
        F.cross_entropy(logits, torch.tensor([0, 1, 2, 0, 1]), reduction="sum").item(), rel=1e-6
    )
    numbers = torch.randn(5)
    expected = F.mse_loss(logits[:, 0], numbers, reduction="sum").item()
    assert sequence_labels(logits[:, :1], numbers).total.item() == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="predictions are"):
        sequence_labels(logits, numbers)


def test_measures_of_pretraining_are_losses_and_shares_of_right_answers():
    labels = torch.tensor([[IGNORED, 2, IGNORED], [0, IGNORED, 1]])
    masked_logits = torch.eye(3)[[2, 1, 1]]
    relationship = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    losses = {
        "mlm": cross_entropy(masked_logits, labels[labels != IGNORED]),
        "nsp": cross_entropy(relationship, torch.tensor([0, 1])),
    }
    masked = SimpleNamespace(labels=labels[labels != IGNORED])
    output = SimpleNamespace(
        losses=losses, masked=masked, masked_logits=masked_logits, seq_relationship_logits=relationship
    )
    measures = pretraining_measures(output, {"labels": labels, "next_sentence_label": torch.tensor([0, 1])})
    assert set(measures) == {"mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy"}
    assert measures["mlm_accuracy"].mean.item() == pytest.approx(2 / 3)
    assert measures["nsp_accuracy"].mean.item() == pytest.approx(1 / 2)
