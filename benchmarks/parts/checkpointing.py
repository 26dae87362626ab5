"""A checkpoint of ours and one of transformers, saved and loaded: each does the work of a turn, and gives its bytes."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from parts.encoders import Setting, bert, minibert
from torch import nn

from minibert import BertForPreTraining
from minibert.training import checkpoint
from minibert.training.optim import OptimizerSettings, make_optimizer
from minibert.training.optimizer_state import load_named_state, named_state
from minibert.training.sharding import whole_state

transformers.utils.logging.disable_progress_bar()  # it would stand in the middle of the table


class Side(NamedTuple):
    """Saves into its folder, and loads from it what was saved last."""

    folder: Path
    save: Callable[[], float]
    load: Callable[[], float]


def minibert_side(setting: Setting, folder: Path) -> Side:
    """As a pretraining run does it, which keeps the last checkpoint until the next one is there."""
    model = minibert(setting)
    optimizer = _stepped(model)
    folder.mkdir()

    def save() -> float:
        weights, tensors = whole_state(model), named_state(optimizer, model)
        state = checkpoint.TrainingState(1, tensors, {})
        checkpoint.save(folder, state, lambda aside: model.save_pretrained(aside, weights=weights), keep=1)
        return disk_size(folder)

    def load() -> float:
        source = checkpoint.newest(folder)
        assert source is not None
        loaded = BertForPreTraining.from_pretrained(source)
        load_named_state(_optimizer(loaded), loaded, checkpoint.load_state(source).optimizer)
        return disk_size(folder)

    return Side(folder, save, load)


def transformers_side(setting: Setting, folder: Path, *, synced: bool = False) -> Side:
    """As its Trainer does it, into a new folder; where `synced` until the disk has it."""
    model = bert(setting)
    optimizer = _stepped(model)
    folder.mkdir()

    def save() -> float:
        shutil.rmtree(folder)
        model.save_pretrained(folder)
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")
        if synced:
            for path in [*folder.iterdir(), folder]:
                _sync(path)
        return disk_size(folder)

    def load() -> float:
        loaded = transformers.BertForPreTraining.from_pretrained(folder)
        _optimizer(loaded).load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))
        return disk_size(folder)

    return Side(folder, save, load)


def disk_size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return make_optimizer(model, OptimizerSettings())


def _stepped(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer that remembers a step."""
    optimizer = _optimizer(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
