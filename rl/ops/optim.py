"""RMSProp as TensorFlow 1 computes it.

It differs from `torch.optim.RMSprop` in two ways: the mean square starts at one, so that the first steps are
small, and epsilon stands inside the root, so that 0.01 there damps like 0.1 outside. The papers' settings assume it.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class RMSPropTF1(torch.optim.Optimizer):
    """ms = alpha ms + (1 - alpha) g^2;  step = momentum step + lr g / sqrt(ms + eps);  w = w - step.

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
