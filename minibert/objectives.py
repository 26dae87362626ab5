"""Losses and metrics as sums with counts: means are taken once, over all micro-batches and processes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100
"""The label of what is not to be predicted."""


class Measure(NamedTuple):
    """A sum, and over how many terms it was taken.

    A tuple, as compiled code returns no dataclasses inside others.
    """

    total: Tensor
    count: Tensor  # type: ignore[assignment]  # a tuple has a method of this name

    @property
    def mean(self) -> Tensor:
        """total / count, and 0 where nothing was counted."""
        return self.total / self.count.clamp(min=1)


def cross_entropy(logits: Tensor, labels: Tensor) -> Measure:
    """-Σ ln softmax(logits)[label] over the labels that are not -100: logits [..., C], labels [...].

    Raises `ValueError` (on the CPU) for a label that is neither -100 nor one of 0 .. C-1.
    """
    logits, labels = logits.flatten(0, -2), labels.flatten()
    check_labels(labels, logits.size(-1))
    total = F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
    return Measure(total, (labels != IGNORED).sum())


def accuracy(logits: Tensor, labels: Tensor) -> Measure:
    """How many of the labels that are not -100 have the largest logit: logits [..., C], labels [...]."""
    counted = labels != IGNORED
    return Measure(((logits.argmax(-1) == labels) & counted).sum(), counted.sum())


def squared_error(predictions: Tensor, targets: Tensor) -> Measure:
    """Σ (prediction - target)²; both have the same shape, or `ValueError` is raised."""
    if predictions.shape != targets.shape:
        raise ValueError(f"predictions are {list(predictions.shape)}, targets {list(targets.shape)}")
    return Measure((predictions.float() - targets.float()).square().sum(), torch.tensor(targets.numel()))


def sequence_labels(logits: Tensor, labels: Tensor) -> Measure:
    """The loss of one prediction for each sequence: of classes, or of numbers where the labels are not whole.

    logits [B, C]; labels [B] whole numbers for cross-entropy, or floating-point [B] with C = 1 for squared error.
    """
    if labels.is_floating_point():
        return squared_error(logits.squeeze(-1), labels)
    return cross_entropy(logits, labels)


def pretraining_measures(output: Any, batch: Mapping[str, Tensor]) -> dict[str, Measure]:
    """Losses and accuracies of masked LM and next sentence prediction, for evaluation.

    `output` is what a model with these heads answered to `batch`.
    """
    measures = {f"{name}_loss": measure for name, measure in output.losses.items()}
    if output.masked is not None:
        measures["mlm_accuracy"] = accuracy(output.masked_logits, output.masked.labels)
    if "nsp" in output.losses:
        measures["nsp_accuracy"] = accuracy(output.seq_relationship_logits, batch["next_sentence_label"])
    return measures


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise `ValueError` for a label that is neither -100 nor one of 0 .. classes - 1; a GPU is not waited for."""
    if labels.device.type != "cpu" or labels.numel() == 0 or torch.compiler.is_compiling():
        return
    wrong = labels[(labels != IGNORED) & ((labels < 0) | (labels >= classes))]
    if wrong.numel():
        raise ValueError(f"labels hold {int(wrong[0])}, expected 0 to {classes - 1}, or {IGNORED} for what is ignored")
