"""Which base does an adapter belong to? Its sizes, and a fingerprint of each of its parts."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minibert.adapters.base import attached
from minibert.adapters.seams import encoder_prefix, head_weights, hidden_size, seams
from minibert.errors import UserError

Facts = dict[str, int | str]

_SIZES = ("hidden_size", "num_hidden_layers")
_BELOW = "adapters"


def base_facts(model: nn.Module, name: str) -> Facts:
    """Sizes of the base below the adapter `name`, and SHA-256 of names, shapes and contents of its weights.

    One hash for each of embeddings, encoder and pooler, so that models with and without pooler can be compared, and
    one for the adapters that the adapter is stacked on. The head is no part of the base.
    """
    hashes = {_BELOW: hashlib.sha256()}
    for key, weight in _base_weights(model, name):
        part = hashes.setdefault(key.split(".")[0], hashlib.sha256())
        part.update(f"{key} {weight.dtype} {list(weight.shape)}\n".encode())
        part.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    sizes = (hidden_size(model), len(seams(model, ["output"])))
    return {**dict(zip(_SIZES, sizes, strict=True)), **{part: sha.hexdigest() for part, sha in hashes.items()}}


def refuse_other_base(model: nn.Module, name: str, facts: Mapping[str, Any], source: Path, allow_other: bool) -> None:
    """Raise `UserError` where `facts` tell of another base than the one below the adapter `name`.

    With `allow_other` its sizes must agree, its weights need not. A part that only one of the two has is not compared.
    """
    if not facts:  # written by another library
        return
    own = base_facts(model, name)
    for size in _SIZES:
        if facts.get(size, own[size]) != own[size]:
            raise UserError(f"{source}: was trained on a base with {size} {facts[size]}, this one has {own[size]}")
    others = [part for part in own if facts.get(part, own[part]) != own[part]]
    if others and not allow_other:
        raise UserError(f"{source}: was trained on another base; the weights of its {' and '.join(others)} differ")


def _base_weights(model: nn.Module, name: str) -> Iterator[tuple[str, Tensor]]:
    prefix, head = encoder_prefix(model), head_weights(model)
    for key, weight in model.state_dict().items():
        if key.startswith(prefix) and not key.startswith("adapters.") and key not in head:
            yield key.removeprefix(prefix), weight
    adapters = list(attached(model))
    for number, below in enumerate(adapters[: adapters.index(name)]):
        for key, weight in attached(model)[below].state_dict().items():
            yield f"{_BELOW}.{number}.{key}", weight
