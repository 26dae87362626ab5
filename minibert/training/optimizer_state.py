"""An optimizer's tensors by the names of the parameters that they belong to, so that they fit any order or layout."""

import torch
from torch import Tensor, nn

from minibert.errors import UserError
from minibert.training.sharding import like, plain_name, whole


def named_state(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimizer's tensors as `parameter/moment`: names instead of numbers, whole and on the CPU.

    Where they are cut up over the processes, all must ask together, whoever needs the answer.
    """
    return {
        f"{plain_name(name)}/{moment}": whole(tensor.detach()).cpu()
        for name, parameter in model.named_parameters()
        for moment, tensor in optimizer.state.get(parameter, {}).items()
    }


def load_named_state(optimizer: torch.optim.Optimizer, model: nn.Module, state: dict[str, Tensor]) -> None:
    """Put back what `named_state` gave; nothing, where no update had been applied.

    To be called after `accelerator.prepare`, which may move or cut up the parameters; each moment goes where its
    parameter is. Raises `UserError` unless the state is about exactly the trainable parameters.
    """
    if not state:
        return
    by_name: dict[str, dict[str, Tensor]] = {}
    for key, tensor in state.items():
        name, moment = key.rsplit("/", 1)
        by_name.setdefault(name, {})[moment] = tensor
    trainable = {plain_name(name): weight for name, weight in model.named_parameters() if weight.requires_grad}
    if wrong := set(by_name) ^ set(trainable):
        raise UserError(f"the optimizer state in the checkpoint and the model differ in {sorted(wrong)[0]}")
    names = {weight: name for name, weight in trainable.items()}
    ordered = [weight for group in optimizer.param_groups for weight in group["params"]]
    placed = {number: _placed(by_name[names[weight]], weight) for number, weight in enumerate(ordered)}
    optimizer.load_state_dict({"state": placed, "param_groups": optimizer.state_dict()["param_groups"]})


def _placed(moments: dict[str, Tensor], weight: Tensor) -> dict[str, Tensor]:
    """What has the shape of the weight lies as the weight does; a count of steps goes where the optimizer wants it."""
    return {
        moment: like(tensor, weight) if moment != "step" and tensor.shape == weight.shape else tensor
        for moment, tensor in moments.items()
    }
