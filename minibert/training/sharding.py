"""A tensor that is cut up over the processes, made whole and cut again; on any other tensor all this does nothing.

FSDP  (Zhao et al. 2023) cuts parameters, and with them gradients and moments, into `DTensor`s. A checkpoint knows
nothing of that: what is saved is whole, and what is loaded is cut as the parameter is that it belongs to.
"""

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module"}


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; where it is cut up, all processes must ask together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """`tensor`, which every process has whole, on the device of `parameter` and cut up as it is; nothing is sent."""
    tensor = tensor.to(parameter.device)
    if not isinstance(parameter, DTensor):
        return tensor
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements, src_data_rank=None)


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model, whole and on the CPU, by the names that they have on one process.

    All processes must ask together, whoever needs the answer.
    """
    return {plain_name(name): whole(tensor.detach()).cpu() for name, tensor in model.state_dict().items()}


def plain_name(name: str) -> str:
    """The name of a parameter without what compiling and activation checkpointing put into it."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)
