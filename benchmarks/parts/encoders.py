"""The encoders that are compared, each as a step of pretraining: forward, backward, clipping, a fused step of AdamW."""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from parts.inputs import Batch, Integers, Sequences, draw, packed, padded
from parts.peak import peak_memory
from parts.shapes import Shape
from parts.work import Reading, wait
from torch import nn

from minibert import BertConfig, BertForPreTraining
from minibert.training.optim import OptimizerSettings, make_optimizer

RATE, DECAY, CLIP = 1e-4, 0.01, 1.0
_SECONDS = 0.5  # of a turn, at least


@dataclass(frozen=True)
class Setting:
    """How an encoder is to run."""

    shape: Shape
    longest: int
    """Tokens of a row, at most."""
    dropout: float = 0.1
    bf16: bool = False
    device: str = "cpu"


class Side(NamedTuple):
    """An encoder, and the batches that it takes."""

    make: Callable[[Setting], nn.Module]
    batch: Callable[[Sequences, int], Batch]
    """Of sequences, for rows that are so wide where they can be."""
    compiled: bool = False


class Work(NamedTuple):
    """What a turn is made of: the same for all sides."""

    batches: list[Integers]
    """The lengths of the sequences in each batch."""

    @property
    def readings(self) -> list[Reading]:
        """All sequences of a turn."""
        return [one for seed, lengths in enumerate(self.batches) for one in draw(lengths, seed=seed).readings]

    @property
    def tokens(self) -> int:
        """Real ones of a turn."""
        return int(sum(lengths.sum() for lengths in self.batches))


def full_rows(length: int, tokens: int) -> Work:
    """One batch of rows that a sequence fills."""
    return Work([np.full(max(1, tokens // length), length)])


def turn(side: str, setting: Setting, work: Work) -> Callable[[], float]:
    """A contender: goes through the batches again and again for half a second, and says how many real tokens it was."""
    go = steps(side, setting, work)

    def contender() -> float:
        end, tokens = time.perf_counter() + _SECONDS, 0
        while not tokens or time.perf_counter() < end:
            go()
            tokens += work.tokens
        return tokens

    return contender


def peak(side: str, setting: Setting, work: Work) -> int:
    """Bytes above those before the first step; for a process of its own."""
    go = steps(side, setting, Work(2 * work.batches[:2]))
    return peak_memory(go, setting.device)


def steps(side: str, setting: Setting, work: Work) -> Callable[[], None]:
    """Makes an encoder and the batches; then a step with each of them."""
    torch.manual_seed(0)
    made = SIDES[side]
    drawn = (draw(lengths, seed=seed) for seed, lengths in enumerate(work.batches))
    batches = [on_device(made.batch(sequences, setting.longest), setting) for sequences in drawn]
    model = made.make(setting).to(setting.device).train()
    if made.compiled:
        model.compile()
    step = stepping(model, setting)

    def go() -> None:
        for batch in batches:
            step([batch])
        wait(setting.device)

    return go


def stepping(model: nn.Module, setting: Setting) -> Callable[[Sequence[Batch]], None]:
    """An update of the model by the micro-batches that it is given."""
    optimizer = make_optimizer(model, OptimizerSettings(learning_rate=RATE, weight_decay=DECAY))
    parameters = list(model.parameters())

    def step(batches: Sequence[Batch]) -> None:
        for batch in batches:
            with torch.autocast(setting.device, torch.bfloat16) if setting.bf16 else nullcontext():
                loss = model(**batch).loss / len(batches)
            loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return step


def on_device(batch: Batch, setting: Setting) -> Batch:
    """The same tensors where the encoder is."""
    return {name: tensor.to(setting.device) for name, tensor in batch.items()}


def minibert(setting: Setting) -> nn.Module:
    """Ours, with MLM and NSP."""
    return BertForPreTraining(BertConfig(**fields(setting)))


def bert(setting: Setting) -> nn.Module:
    """That of transformers, with MLM and NSP."""
    import transformers

    config = transformers.BertConfig(**fields(setting), attn_implementation="sdpa")
    return transformers.BertForPreTraining(config)


def modernbert(setting: Setting) -> nn.Module:
    """Its younger sister (Warner et al. 2024), with MLM, and as many weights in a layer."""
    import transformers

    own, dropout = fields(setting), setting.dropout
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        del own[name]
    own["intermediate_size"] = round(setting.shape.inner * 2 / 3 / 64) * 64  # it has three matrices, not two
    special = {"pad_token_id": 0, "cls_token_id": 101, "bos_token_id": 101, "sep_token_id": 102, "eos_token_id": 102}
    rates = {"attention_dropout": dropout, "mlp_dropout": dropout, "embedding_dropout": dropout}
    config = transformers.ModernBertConfig(**own, **special, **rates, attn_implementation="sdpa")
    return transformers.ModernBertForMaskedLM(config)


def _one_a_row(sequences: Sequences, width: int) -> Batch:
    return padded(sequences)


def _words_alone(sequences: Sequences, width: int) -> Batch:
    batch = padded(sequences)
    return {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}


def fields(setting: Setting) -> dict[str, Any]:
    """Of the config, which have the same names on all sides."""
    shape = setting.shape
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.inner,
        "max_position_embeddings": max(512, setting.longest),
        "hidden_dropout_prob": setting.dropout,
        "attention_probs_dropout_prob": setting.dropout,
    }


SIDES = {
    "minibert": Side(minibert, packed),
    "minibert, compiled": Side(minibert, packed, compiled=True),
    "transformers": Side(bert, _one_a_row),
    "ModernBERT": Side(modernbert, _words_alone),
}
