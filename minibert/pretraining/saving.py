"""What a checkpoint of a pretraining run holds, and how it comes back."""

import secrets
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from tokenizers import Tokenizer
from torch import Tensor

from minibert.data.corpus import Corpus
from minibert.data.course import Place
from minibert.data.tokenizer import Vocabulary, save_tokenizer
from minibert.errors import UserError
from minibert.model import BertForMaskedLM, BertForPreTraining
from minibert.pretraining.config import PretrainConfig
from minibert.training import checkpoint
from minibert.training.averaging import Ema
from minibert.training.checkpoint import TrainingState
from minibert.training.guard import Guard
from minibert.training.optimizer_state import load_named_state, named_state
from minibert.training.sharding import whole_state

AVERAGE = "/average"
"""What a weight's moving average is called among the optimizer's tensors."""


@dataclass(frozen=True)
class Parts:
    """What evaluating and saving need while the loop runs."""

    accelerator: Accelerator
    model: Any
    optimizer: torch.optim.Optimizer
    tokenizer: Tokenizer
    vocabulary: Vocabulary
    validation: Corpus
    guard: Guard
    ema: Ema | None


def make_model(config: PretrainConfig, source: Path | None) -> BertForPreTraining | BertForMaskedLM:
    """A fresh model, or that of a checkpoint, which must have the same shape."""
    kind = BertForMaskedLM if config.pairs.objective == "none" else BertForPreTraining
    return kind(config.model) if source is None else kind.from_pretrained(source, **vars(config.model))


def begin(corpus: Corpus) -> TrainingState:
    """The state before the first update."""
    run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    place = asdict(Place())
    return TrainingState(0, {}, {"run_id": run_id, "corpus": corpus.fingerprint, "place": place, "seconds": 0.0})


def load(source: Path, corpus: Corpus) -> TrainingState:
    """The state that a checkpoint holds; refuses another corpus than that of the run."""
    state = checkpoint.load_state(source)
    if state.extra.get("corpus") != corpus.fingerprint:
        raise UserError(f"{corpus.directory}: not the corpus that {source} was trained on (their fingerprints differ)")
    if missing := {"place", "seconds", "guard"} - state.extra.keys():
        raise UserError(f"{source}: its state lacks {min(missing)}; expected a checkpoint of this version")
    return state


def put_back(state: TrainingState, parts: Parts) -> None:
    """Give optimizer, guard, averages and gradient scaler what they held."""
    moments = {name: tensor for name, tensor in state.optimizer.items() if not name.endswith(AVERAGE)}
    load_named_state(parts.optimizer, parts.accelerator.unwrap_model(parts.model), moments)
    parts.guard.load(state.extra["guard"])
    if parts.ema is not None and "averaged" in state.extra:  # else it was asked for later, and begins here
        averages = {
            name.removesuffix(AVERAGE): tensor for name, tensor in state.optimizer.items() if name.endswith(AVERAGE)
        }
        parts.ema.load(averages, state.extra["averaged"])
    if scaler := state.extra["scaler"]:
        parts.accelerator.scaler.load_state_dict(scaler)


def save(step: int, extra: dict[str, Any], config: PretrainConfig, parts: Parts) -> None:
    """Write a checkpoint: all processes gather what is cut up between them, one writes."""
    accelerator, scaler = parts.accelerator, parts.accelerator.scaler
    model = accelerator.unwrap_model(parts.model)
    weights, tensors = whole_state(model), named_state(parts.optimizer, model)
    if parts.ema is not None:
        tensors |= {f"{name}{AVERAGE}": tensor for name, tensor in parts.ema.state().items()}
        extra = extra | {"averaged": parts.ema.updates}
    extra = extra | {"guard": parts.guard.state(), "scaler": scaler.state_dict() if scaler else None}
    if accelerator.is_main_process:
        keep = max(config.training.keep, config.averaging.last or 0)
        write = partial(write_model, model=model, weights=weights, config=config, parts=parts)
        checkpoint.save(Path(config.output), TrainingState(step, tensors, extra), write, keep)
    accelerator.wait_for_everyone()


def write_model(
    directory: Path, *, model: Any, weights: dict[str, Tensor], config: PretrainConfig, parts: Parts
) -> None:
    """Put a model and its tokenizer into a folder."""
    model.save_pretrained(directory, weights=weights)
    save_tokenizer(parts.tokenizer, directory, model_max_length=config.model.max_position_embeddings)
