"""The names that an encoder promises to those who attach from outside, and how to find them in a model."""

import re
from collections.abc import Iterable

from torch import nn

from minibert.errors import UserError

SEAMS = {
    "query": "attention.query",
    "key": "attention.key",
    "value": "attention.value",
    "output": "attention.output",
    "up": "feed_forward.up",
    "down": "feed_forward.down",
    "attention": "attention",
    "feed_forward": "feed_forward",
}
"""Where an adapter may listen in each encoder layer: first the linear maps, then the two sublayers."""


def seams(model: nn.Module, names: Iterable[str]) -> dict[str, nn.Module]:
    """The submodules that `SEAMS` calls by these names in all encoder layers, by path.

    Raises `UserError` where there are none, as in a model that a wrapper hides.
    """
    wanted = "|".join(re.escape(SEAMS[name]) for name in names)
    pattern = re.compile(rf"{re.escape(encoder_prefix(model))}encoder\.layers\.\d+\.({wanted})")
    found = {path: module for path, module in model.named_modules() if pattern.fullmatch(path)}
    if not found:
        raise UserError(f"{type(model).__name__} has no encoder layers to attach to; attach before wrapping the model")
    return found


def encoder_prefix(model: nn.Module) -> str:
    """What the names of all that is not head begin with: `bert.`, or nothing where the model is the encoder itself."""
    return "bert." if hasattr(model, "bert") else ""


def head_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """What is trained beside an adapter: all outside the encoder, and what the checkpoint of the model lacked."""
    fresh = getattr(model, "fresh_weights", ())
    not_head = ("adapters.", encoder_prefix(model))
    return {key: w for key, w in model.named_parameters() if key in fresh or not key.startswith(not_head)}


def shape(seam: nn.Module) -> tuple[int, int]:
    """Sizes of output and input of a linear map."""
    assert isinstance(seam, nn.Linear)
    return seam.out_features, seam.in_features


def hidden_size(model: nn.Module) -> int:
    """Width H of the encoder."""
    return shape(next(iter(seams(model, ["output"]).values())))[0]
