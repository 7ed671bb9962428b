"""Dense layers one after another, and the nonlinear functions between the layers of any network."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

Layer = Callable[[int, int], nn.Module]  #: makes a layer of so many inputs and outputs
NAMES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")  #: of layers, in checkpoints
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
        self.function = _FUNCTIONS[own if name == "auto" else name][inplace]

    def forward(self, x: Tensor) -> Tensor:
        """Any shape -> the same."""
        return self.function(x)


class Dense(nn.Module):
    """Layers, each with an activation.

    Args:
      sizes: width of the input, then of each layer.
      activation: after each.
      own: what the activation "auto" stands for.
      make: a layer.
    """

    def __init__(self, sizes: Sequence[int], activation: str, own: str = "relu", make: Layer = nn.Linear) -> None:
        super().__init__()
        self.layers = tuple(make(n_in, n_out) for n_in, n_out in itertools.pairwise(sizes))
        for name, layer in zip(NAMES, self.layers, strict=False):
            self.add_module(name, layer)
        self.act = Activation(activation, own)

    def forward(self, x: Tensor) -> Tensor:
        """[..., n_in] -> [..., n_out]."""
        act = self.act.function  # a call of a module takes microseconds, of which a small batch has few
        for layer in self.layers:
            x = act(layer(x))
        return x
