"""LAMB: Adam whose step for each matrix is as long as the matrix asks for, so that batches may be large."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class Lamb(torch.optim.Optimizer):
    """r = m̂ / (√v̂ + ε) + λ x,   x ← x - η · ‖x‖ / ‖r‖ · r   (You et al. 2020, algorithm 2, with φ(z) = z).

    m̂ and v̂ are Adam's means of the gradient and of its square, with bias correction; the ratio ‖x‖ / ‖r‖ is taken for
    each tensor, and is 1 where either norm is 0. A group whose `adapts` is unset has no ratio: plain Adam, as is
    usual for biases and norms.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adapts: bool = True,
    ):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adapts": adapts}
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for moments in self.state.values():
            moments["step"] = moments["step"].cpu()  # where reading it makes nobody wait

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change each parameter that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._change(parameters, group)
        return loss

    def _change(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        updates = self._adam(parameters, group)
        torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        if group["adapts"]:
            torch._foreach_mul_(updates, _ratios(parameters, updates))
        torch._foreach_add_(parameters, updates, alpha=-group["lr"])

    def _adam(self, parameters: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """m̂ / (√v̂ + ε) of each parameter, after its gradient has been added to m and v."""
        beta1, beta2 = group["betas"]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]  # all have one
        states = [self._state(parameter) for parameter in parameters]
        means, squares = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
        for state in states:
            state["step"] += 1
        steps = [int(state["step"]) for state in states]
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        updates = torch._foreach_div(means, [1 - beta1**step for step in steps])
        roots = torch._foreach_sqrt(torch._foreach_div(squares, [1 - beta2**step for step in steps]))
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_div_(updates, roots)
        return list(updates)

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            zeros = torch.zeros_like(parameter), torch.zeros_like(parameter)
            state["step"], state["exp_avg"], state["exp_avg_sq"] = torch.zeros(()), *zeros
        return state


def _ratios(parameters: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """‖x‖ / ‖r‖ of each, and 1 where either is 0; norms of whole tensors, also where each process holds a part."""
    weights, lengths = (torch.stack(torch._foreach_norm(tensors)) for tensors in (parameters, updates))
    return list(torch.where((weights > 0) & (lengths > 0), weights / lengths, torch.ones_like(lengths)).unbind())
