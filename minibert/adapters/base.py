"""How an adapter attaches: its parts listen at seams of the encoder, which knows nothing of them.

    bert.encoder.layers.0.attention.query ──┐ forward hook: part(input, output) -> output
    model.adapters["default"] ──────────────┘ holds the part, so that `.to()`, optimizers and DDP see its parameters

A config says which parts it puts at which seams. A part is an `nn.Module` whose `forward(input, output)` gives what the
seam shall return; one that has `change_input` changes what the seam is given instead.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from minibert.adapters.guard import guard
from minibert.adapters.seams import SEAMS, head_weights, seams
from minibert.errors import UserError


class AdapterConfig(Protocol):
    """What describes an adapter: a frozen dataclass with the settings of one kind."""

    kind: ClassVar[str]

    def parts(self, model: nn.Module) -> Mapping[str, nn.Module]:
        """Fresh parts for `model`, by the path of the seam where each listens; together they change nothing."""


@runtime_checkable
class ChangesInput(Protocol):
    """A part that changes what its seam is given, not what it returns."""

    def change_input(self, given: Tensor) -> Tensor:
        """The input that the seam shall see instead."""


class Adapter(nn.Module):
    """The parts of one adapter, each named after its seam, with a slash for every dot.

    Args:
        trained_before: for each parameter of the model, whether it was trainable when this adapter came.
    """

    def __init__(self, config: AdapterConfig, parts: Mapping[str, nn.Module], trained_before: Mapping[str, bool]):
        super().__init__()
        self.config = config
        self.trained_before = dict(trained_before)
        self.unmerged: dict[str, Tensor] | None = None
        """While the adapter is merged: the weights of the base as they were."""
        self._handles: list[RemovableHandle] = []
        for seam, part in parts.items():
            self.add_module(seam.replace(".", "/"), part)

    def parts(self) -> Iterator[tuple[str, nn.Module]]:
        """Path of the seam and part, for each part."""
        return ((name.replace("/", "."), part) for name, part in self.named_children())

    def listen(self, model: nn.Module) -> None:
        """Let every part take effect at its seam, after those that listen there already."""
        self._handles = [_listen(part, model.get_submodule(seam)) for seam, part in self.parts()]

    def rest(self) -> None:
        """Take no effect until `listen` is called again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def attach(model: nn.Module, config: AdapterConfig, name: str = "default") -> None:
    """Put a fresh adapter on `model`; from then on only it and the head are trainable.

    The outputs do not change, since every adapter but a prefix starts as the identity. The head is what is not under
    `model.bert`, and what the checkpoint of the model lacked (`model.fresh_weights`). An adapter that is attached
    already stays in effect, frozen. Attach before the model goes to DDP or `torch.compile`, and before its optimizer is
    made: one made earlier is refused at its next step.

    Raises `UserError` where the name is taken, the model has no seams of the kind, or an adapter is merged.
    """
    seams(model, SEAMS)  # refuses a wrapper, even where no part listens
    refuse_merged(model)
    adapters = attached(model)
    _check_name(name, adapters)
    adapter = Adapter(config, config.parts(model), {key: w.requires_grad for key, w in model.named_parameters()})
    for seam, part in adapter.parts():
        part.to(next(model.get_submodule(seam).parameters()))  # its device and dtype
    adapter.train(model.training)
    adapter.listen(model)
    trained = [*adapter.parameters(), *head_weights(model).values()]
    model.requires_grad_(False)
    for weight in trained:
        weight.requires_grad_(True)
    model.adapters = nn.ModuleDict({**adapters, name: adapter})
    guard(model)


def detach(model: nn.Module, name: str = "default") -> None:
    """Take an adapter off: the base has its weights bit for bit, trainable again where they were before.

    The head stays as it was trained. Raises `UserError` where no adapter has the name, or one is merged.
    """
    refuse_merged(model)
    adapter = find(model, name)
    adapter.rest()
    rest = attached(model)
    later = list(rest.values())[list(rest).index(name) + 1 :]
    del rest[name]
    model.adapters = nn.ModuleDict(rest)
    if not rest:
        del model.adapters
    if later:
        later[0].trained_before |= adapter.trained_before
        return
    for key, weight in model.named_parameters():
        weight.requires_grad_(adapter.trained_before.get(key, weight.requires_grad))


def attached(model: nn.Module) -> dict[str, Adapter]:
    """The adapters on `model` by name, in the order in which they came and take effect."""
    adapters = getattr(model, "adapters", {})
    return dict(adapters.items())


def find(model: nn.Module, name: str) -> Adapter:
    """The adapter of that name; raises `UserError` where there is none."""
    adapters = attached(model)
    if name not in adapters:
        raise UserError(f"no adapter named {name!r} is attached; there is {', '.join(adapters) or 'none at all'}")
    return adapters[name]


def refuse_merged(model: nn.Module) -> None:
    """Raise `UserError` while adapters are merged: the base then has other weights than its own."""
    if any(adapter.unmerged is not None for adapter in attached(model).values()):
        raise UserError("the adapters are merged into the base; unmerge them first")


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """What an optimizer is to be given, by name."""
    refuse_merged(model)
    return {key: weight for key, weight in model.named_parameters() if weight.requires_grad}


def _check_name(name: str, adapters: Mapping[str, Adapter]) -> None:
    if name in adapters:
        raise UserError(f"an adapter named {name!r} is attached already; detach it first, or choose another name")
    if not name or "." in name or hasattr(nn.ModuleDict(), name):
        raise UserError(f"an adapter cannot be named {name!r}; expected a word such as 'default'")


def _listen(part: nn.Module, seam: nn.Module) -> RemovableHandle:
    """A partial, not a closure: the hooks of a deep copy of the model then call the parts of the copy."""
    if isinstance(part, ChangesInput):
        return seam.register_forward_pre_hook(partial(_change_input, part))
    return seam.register_forward_hook(partial(_change_output, part))


def _change_output(part: nn.Module, seam: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return part(inputs[0], output)


def _change_input(part: ChangesInput, seam: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return part.change_input(inputs[0]), *inputs[1:]
