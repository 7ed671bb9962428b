"""Dense layers one after another or as residual blocks, and the nonlinear functions of any network."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from zerobeast.rl.nets.norms import MakeNorm, norm_maker

Layer = Callable[[int, int], nn.Module]  #: makes a layer of so many inputs and outputs
WIDENING = 4  #: of a residual block
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


class Block(nn.Module):
    """x + act(norm(W act(norm(V x)))), V four times as wide as x: the block of FlashSAC (Kim et al. 2026).

    Args:
      n: width.
      act: the activation.
      make: a layer.
      norm: of a layer; it may make none.
    """

    def __init__(self, n: int, act: Activation, make: Layer, norm: MakeNorm) -> None:
        super().__init__()
        self.first, self.second = make(n, WIDENING * n), make(WIDENING * n, n)
        self.first_norm, self.second_norm = norm(WIDENING * n), norm(n)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        """[..., n] -> the same."""
        inner = self.act(_normalize(self.first_norm, self.first(x)))
        return torch.add(x, self.act(_normalize(self.second_norm, self.second(inner))))


class Dense(nn.Module):
    """Layers, each with a norm, if there is one, and an activation; or residual blocks on a single layer without both.

    Args:
      sizes: width of the input, then of each layer; with blocks, two.
      activation: after each.
      own: what the activation "auto" stands for.
      make: a layer.
      norm: of each, see `zerobeast.rl.nets.norms`.
      blocks: number of residual blocks. With a norm, a layer norm follows the last one.
      k: networks whose layers `make` stacks; 0: it makes single ones.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        own: str = "relu",
        make: Layer = nn.Linear,
        norm: str = "none",
        *,
        blocks: int = 0,
        k: int = 0,
    ) -> None:
        super().__init__()
        make_norm = norm_maker(norm, k)
        self.act = Activation(activation, own)
        self.embed = make(*sizes) if blocks else None
        self.layers = () if blocks else tuple(make(n_in, n_out) for n_in, n_out in itertools.pairwise(sizes))
        self.norms = () if blocks else tuple(make_norm(n) for n in sizes[1:])
        for name, layer, own_norm in zip(NAMES, self.layers, self.norms, strict=False):
            self.add_module(name, layer)
            self.add_module(f"{name}_norm", own_norm)
        self.blocks = nn.ModuleList(Block(sizes[-1], self.act, make, make_norm) for _ in range(blocks))
        self.last_norm = norm_maker("layer", k)(sizes[-1]) if blocks and norm != "none" else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., n_in] -> [..., n_out]."""
        act = self.act.function  # a call of a module takes microseconds, of which a small batch has few
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = act(_normalize(norm, layer(x)))
        if self.embed is not None:
            x = self.embed(x)
            for block in self.blocks:
                x = block(x)
        return _normalize(self.last_norm, x)


def _normalize(norm: nn.Module | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)
