"""Optimisers: those of torch, and RMSProp as TensorFlow 1 computes it.

All start without torch's compiler. `torch.optim` loads it in the first call of a method, so that it could exempt the
method from compilation; nothing is compiled here, and loading takes 1.3 s and 75 MB of every learner.
"""

from collections.abc import Iterable
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor


class _Eager(torch.optim.Optimizer):
    """The methods that have a decorator which loads the compiler, without it."""

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)


class Adam(_Eager, torch.optim.Adam):
    """`torch.optim.Adam`."""

    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


class AdamW(_Eager, torch.optim.AdamW):
    """`torch.optim.AdamW`."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


class RAdam(_Eager, torch.optim.RAdam):
    """`torch.optim.RAdam`."""

    step = torch.no_grad()(unwrap(torch.optim.RAdam.step))


class RMSprop(_Eager, torch.optim.RMSprop):
    """`torch.optim.RMSprop`."""

    step = torch.no_grad()(unwrap(torch.optim.RMSprop.step))


class RMSPropTF1(_Eager):
    """ms = alpha ms + (1 - alpha) g^2;  step = momentum step + lr g / sqrt(ms + eps);  w = w - step.

    It differs from `torch.optim.RMSprop` in two ways: the mean square starts at one, so that the first steps are small,
    and epsilon stands inside the root, so that 0.01 there damps like 0.1 outside. The papers' settings assume it.

    Args:
      params: parameters, or groups of them.
      lr: learning rate.
      alpha: decay of the mean square.
      eps: added to the mean square.
      momentum: decay of the step.
    """

    def __init__(
        self, params: Iterable[Tensor], *, lr: float, alpha: float = 0.99, eps: float = 0.1, momentum: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # without a closure that evaluates the loss
        """Change every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["square_avg"] = torch.ones_like(parameter)
            if group["momentum"]:
                state["momentum_buffer"] = torch.zeros_like(parameter)
        mean_square = state["square_avg"].mul_(group["alpha"]).addcmul_(grad, grad, value=1 - group["alpha"])
        root = mean_square.add(group["eps"]).sqrt_()
        if not group["momentum"]:
            parameter.addcdiv_(grad, root, value=-group["lr"])
            return
        step = state["momentum_buffer"].mul_(group["momentum"]).addcdiv_(grad, root, value=group["lr"])
        parameter.sub_(step)
