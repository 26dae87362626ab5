"""An adapter that costs nothing in use: folded into the weights of the base, and taken out again bit for bit."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from minibert.adapters.base import Adapter, attached, refuse_merged
from minibert.errors import UserError


@runtime_checkable
class Mergeable(Protocol):
    """A part whose effect the parameters of its seam can have by themselves."""

    def merged(self, seam: nn.Module) -> dict[str, Tensor]:
        """Parameters of the seam, by name, as they are with the part folded in."""


@torch.no_grad()
def merge(model: nn.Module) -> None:
    """Fold all adapters into the weights of the base: equal outputs, to rounding, at the cost of the bare encoder.

    `save_pretrained` then writes a checkpoint that needs no adapter. Until `unmerge`, adapters cannot be trained,
    saved, loaded, attached or detached. Raises `UserError` where they are merged already, or one cannot be.
    """
    refuse_merged(model)
    adapters = attached(model)
    if not adapters:
        raise UserError("there is no adapter to merge")
    for name, adapter in adapters.items():
        if not all(isinstance(part, Mergeable) for _, part in adapter.parts()):
            raise UserError(f"the adapter {name!r} is of the kind {adapter.config.kind}, which cannot be merged")
    for adapter in adapters.values():
        adapter.unmerged = dict(_fold_in(model, adapter))
        adapter.rest()


@torch.no_grad()
def unmerge(model: nn.Module) -> None:
    """Undo `merge`: the base has its weights bit for bit. Raises `UserError` where nothing is merged."""
    adapters = list(attached(model).values())
    if not any(adapter.unmerged is not None for adapter in adapters):
        raise UserError("no adapter is merged")
    for adapter in reversed(adapters):
        for key, weight in (adapter.unmerged or {}).items():
            model.get_parameter(key).copy_(weight)
        adapter.unmerged = None
    for adapter in adapters:
        adapter.listen(model)


def _fold_in(model: nn.Module, adapter: Adapter) -> Iterator[tuple[str, Tensor]]:
    """Names and copies of the weights that gave way to merged ones."""
    for path, part in adapter.parts():
        assert isinstance(part, Mergeable)
        seam = model.get_submodule(path)
        for name, weight in part.merged(seam).items():
            yield f"{path}.{name}", seam.get_parameter(name).clone()
            seam.get_parameter(name).copy_(weight)
