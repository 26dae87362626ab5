"""A classifier of ours and one of transformers, each doing the work of a turn: some updates, or reading some inputs."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from parts.peak import peak_memory
from parts.work import wait
from torch.utils.data import DataLoader
from transformers import BertForSequenceClassification as TransformersClassifier
from transformers import BertTokenizerFast, DataCollatorWithPadding
from transformers.utils import logging

from minibert import BertForSequenceClassification
from minibert.data.ragged import Inputs, pack
from minibert.data.tasks import Examples, epoch_batches
from minibert.inference import class_logits
from minibert.training.loop import Batch, train
from minibert.training.optim import OptimizerSettings, make_optimizer

RATE, DECAY, CLIP = 2e-5, 0.01, 1.0

logging.disable_progress_bar()  # it would stand in the middle of the table


@dataclass(frozen=True)
class Job:
    """What both sides do."""

    model: Path
    inputs: Inputs
    updates: int
    """In a turn of training."""
    batch_size: int
    read: int
    """Inputs in a turn of reading."""
    dropout: float
    bf16: bool
    device: str

    @property
    def examples(self) -> Examples:
        """The inputs, and labels of two classes in turn."""
        return Examples(self.inputs, np.arange(len(self.inputs)) % 2)

    @property
    def tokens_read(self) -> int:
        """Tokens of a turn of reading."""
        return int(self.inputs.lengths[: self.read].sum())

    def autocast(self) -> Any:
        """Where asked for."""
        return torch.autocast(self.device, torch.bfloat16) if self.bf16 else nullcontext()


class Side(NamedTuple):
    """Each does the work of a turn and says how many real tokens it was."""

    train: Callable[[], float]
    answer: Callable[[], float]


def minibert_side(job: Job) -> Side:
    """As finetune/train.py and `minibert.inference.classify` do it."""
    accelerator = Accelerator(cpu=job.device == "cpu", mixed_precision="bf16" if job.bf16 else "no")
    dropout = {"hidden_dropout_prob": job.dropout, "attention_probs_dropout_prob": job.dropout}
    model = BertForSequenceClassification.from_pretrained(job.model, **dropout)
    wrapped, optimizer = accelerator.prepare(
        model, make_optimizer(model, OptimizerSettings(learning_rate=RATE, weight_decay=DECAY))
    )
    updates = train(
        wrapped,
        optimizer,
        accelerator,
        updates=_packed(job),
        learning_rate=lambda update: RATE,
        targets=model.targets,
        clip=CLIP,
        seed=0,
    )
    first = _first(job.inputs, job.read)

    def learn() -> float:
        tokens = sum(int(update.tokens) for update in islice(updates, job.updates))
        wait(job.device)
        return tokens

    def answer() -> float:
        with job.autocast():
            class_logits(model, first, pad_id=0, batch_size=64)
        return job.tokens_read

    return Side(learn, answer)


def transformers_side(job: Job) -> Side:
    """As its Trainer does it: shuffled batches of 32, each padded to its longest input; batches in order to predict."""
    dropout = {"hidden_dropout_prob": job.dropout, "attention_probs_dropout_prob": job.dropout}
    model = TransformersClassifier.from_pretrained(job.model, **dropout).to(job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    rows = _rows(job)
    collate = DataCollatorWithPadding(BertTokenizerFast(vocab={"[PAD]": 0, "[UNK]": 1}))
    loader = DataLoader(rows, job.batch_size, shuffle=True, collate_fn=collate)  # type: ignore[arg-type]
    endless = (batch for _ in count() for batch in loader)

    def learn() -> float:
        model.train()
        tokens = 0
        for batch in islice(endless, job.updates):
            tokens += int(batch["attention_mask"].sum())
            with job.autocast():
                loss = model(**batch.to(job.device)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
        wait(job.device)
        return tokens

    @torch.no_grad()
    def answer() -> float:
        model.eval()
        for batch in DataLoader(rows[: job.read], job.batch_size, collate_fn=collate):  # type: ignore[arg-type]
            with job.autocast():
                model(**batch.to(job.device)).logits.float().softmax(-1).cpu()
        return job.tokens_read

    return Side(learn, answer)


SIDES = {"minibert": minibert_side, "transformers": transformers_side}


def peak(side: str, work: str, job: Job) -> int:
    """Bytes that the first turn of a work needs above what was in use before; for a process of its own."""
    return peak_memory(getattr(SIDES[side](job), work), job.device)


def _packed(job: Job) -> Iterator[tuple[int, list[Batch]]]:
    """Epoch after epoch, as `shares` in finetune/train.py."""
    examples = job.examples
    epochs = (epoch_batches(examples, job.batch_size, seed=0, epoch=epoch) for epoch in count())
    for done, chosen in enumerate(batch for epoch in epochs for batch in epoch):
        yield done, [pack(examples.inputs, chosen, pad_id=0, labels=examples.labels).batch]


def _first(inputs: Inputs, number: int) -> Inputs:
    offsets = inputs.offsets[: number + 1]
    return Inputs(inputs.input_ids[: offsets[-1]], inputs.token_type_ids[: offsets[-1]], offsets)


def _rows(job: Job) -> list[dict[str, Any]]:
    """As a tokenized data set gives them."""
    pieces = np.split(job.inputs.input_ids, job.inputs.offsets[1:-1])
    return [{"input_ids": ids.tolist(), "labels": number % 2} for number, ids in enumerate(pieces)]
