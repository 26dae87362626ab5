"""What was made before an adapter came knows nothing of it: an optimizer is refused, compiled code is dropped."""

from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from minibert.errors import UserError

_seen_by_model: WeakKeyDictionary[nn.Module, WeakSet[Optimizer]] = WeakKeyDictionary()


def guard(model: nn.Module) -> None:
    """Look once at each optimizer that steps from now on: one that trains `model` must hold its adapters too."""
    _seen_by_model[model] = WeakSet()
    _watch_optimizers()
    _watch_hooks()


@cache
def _watch_optimizers() -> None:
    register_optimizer_step_pre_hook(_look)


@cache
def _watch_hooks() -> None:
    """By default `torch.compile` takes hooks for granted: it would run code made for a model without this adapter."""
    import torch._dynamo.config  # takes a second, which `import minibert` need not

    torch.compiler.reset()
    torch._dynamo.config.skip_nnmodule_hook_guards = False


def _look(optimizer: Optimizer, *_: Any) -> None:
    for model, seen in list(_seen_by_model.items()):
        if optimizer not in seen:
            _refuse_stale(optimizer, model)
            seen.add(optimizer)


def _refuse_stale(optimizer: Optimizer, model: nn.Module) -> None:
    """Stale is what holds weights that are frozen and lacks adapters' weights that are not."""
    held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    weights = dict(model.named_parameters())
    if any(id(weight) in held and not weight.requires_grad for weight in weights.values()):
        for name, weight in weights.items():
            if name.startswith("adapters.") and weight.requires_grad and id(weight) not in held:
                raise UserError(
                    f"the optimizer was made before {name} was attached and would not train it; make it anew"
                )
