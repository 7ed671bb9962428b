"""Nonlinear functions between the layers of a network, by name (`net.activation`)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

#: each function, and the form of it that may overwrite its input
_FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "relu": (torch.relu, torch.relu_),
    "tanh": (torch.tanh, torch.tanh_),
    "elu": (functional.elu, functional.elu),
    "silu": (functional.silu, functional.silu),
    "gelu": (functional.gelu, functional.gelu),
}


class Activation(nn.Module):
    """One of these functions, elementwise.

    Args:
      name: the function's, or "auto".
      own: what "auto" stands for.
      inplace: whether the input may be overwritten.
    """

    def __init__(self, name: str, own: str = "relu", *, inplace: bool = True) -> None:
        super().__init__()
        self.mark = "" if name in ("auto", own) else name  #: for `layout_id`
        self._function = _FUNCTIONS[own if name == "auto" else name][inplace]

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return self._function(x)
