"""The loss without logits is that of the logits, forward and backward."""

import pytest
import torch
import torch.nn.functional as F

from minibert import linear_cross_entropy as module
from minibert.linear_cross_entropy import linear_cross_entropy

ROWS, SIZE, WORDS = 23, 5, 31


def made(dtype=torch.float64):
    torch.manual_seed(0)
    given = torch.randn(ROWS, SIZE), torch.randn(WORDS, SIZE), torch.randn(WORDS)
    labels = torch.randint(0, WORDS, (ROWS,))
    labels[[2, 3, 22]] = -100
    return [one.to(dtype).requires_grad_() for one in given], labels


def plain(hidden, weight, bias, labels):
    return F.cross_entropy(F.linear(hidden, weight, bias).float(), labels, reduction="sum")


@pytest.fixture(params=[7, 23, 256], autouse=True)
def rows(request, monkeypatch):
    monkeypatch.setattr(module, "_ROWS", {"cpu": request.param})


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5)])
def test_loss_and_gradients_are_those_of_all_logits_at_once(dtype, tolerance):
    given, labels = made(dtype)
    measure = linear_cross_entropy(*given, labels)
    assert measure.count == 20
    assert torch.allclose(measure.total.float(), plain(*given, labels), atol=1e-4)
    found = torch.autograd.grad(measure.total / 3, given)
    expected = torch.autograd.grad(plain(*given, labels) / 3, given)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=tolerance)


def test_in_bfloat16_it_is_as_near_to_the_truth_as_autocast():
    given, labels = made(torch.float32)
    truth = torch.autograd.grad(plain(*given, labels), given)
    with torch.autocast("cpu", torch.bfloat16):
        measure, usual = linear_cross_entropy(*given, labels).total, plain(*given, labels)
    assert measure.dtype == torch.float32
    assert torch.allclose(measure, usual, rtol=1e-3)
    for one, other, true in zip(
        torch.autograd.grad(measure, given), torch.autograd.grad(usual, given), truth, strict=True
    ):
        assert (one - true).abs().max() <= 1.5 * (other - true).abs().max() + 1e-3


@pytest.mark.parametrize("trained", range(3))
def test_what_is_not_trained_gets_no_gradient(trained):
    given, labels = made()
    for number, one in enumerate(given):
        one.requires_grad_(number == trained)
    linear_cross_entropy(*given, labels).total.backward()
    assert [one.grad is not None for one in given] == [number == trained for number in range(3)]


def test_without_rows_or_labels_it_is_0_and_so_are_the_gradients():
    (hidden, weight, bias), labels = made()
    for some in (slice(0, 0), slice(2, 4)):
        measure = linear_cross_entropy(hidden[some], weight, bias, labels[some])
        assert (measure.total, measure.count) == (0, 0)
        assert all(gradient.eq(0).all() for gradient in torch.autograd.grad(measure.total, (hidden, weight, bias)))


def test_large_logits_do_not_overflow():
    hidden, labels = torch.tensor([[1e4, 0.0]], requires_grad=True), torch.tensor([1])
    measure = linear_cross_entropy(hidden, torch.eye(2), torch.zeros(2), labels)
    assert measure.total == 1e4
    assert torch.autograd.grad(measure.total, hidden)[0].equal(torch.tensor([[1.0, -1.0]]))


def test_gradients_are_there_once():
    given, labels = made()
    total = linear_cross_entropy(*given, labels).total
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="asked twice"):
        total.backward()


def test_a_label_that_is_no_word_is_refused():
    given, labels = made()
    labels[4] = WORDS
    with pytest.raises(ValueError, match=f"labels hold {WORDS}, expected 0 to {WORDS - 1}"):
        linear_cross_entropy(*given, labels)
