"""Dense layers one after another, with names that stay the same however many there are."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from zerobeast.rl.nets.activations import Activation

NAMES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")  #: of layers, in checkpoints


class Dense(nn.Module):
    """Layers, each with an activation.

    Args:
      sizes: width of the input, then of each layer.
      activation: after each.
      own: what the activation "auto" stands for.
      make: a layer of so many inputs and outputs.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        own: str = "relu",
        make: Callable[[int, int], nn.Module] = nn.Linear,
    ) -> None:
        super().__init__()
        self._names = NAMES[: len(sizes) - 1]
        for name, n_in, n_out in zip(self._names, sizes, sizes[1:], strict=False):
            self.add_module(name, make(n_in, n_out))
        self.act = Activation(activation, own)

    def forward(self, x: Tensor) -> Tensor:
        """[..., n_in] -> [..., n_out]."""
        for name in self._names:
            x = self.act(self.get_submodule(name)(x))
        return x
