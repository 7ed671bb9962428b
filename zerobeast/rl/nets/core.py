"""The core: the part of a network that remembers, between the torso and the heads. Any package can bring one:

    class GRU(Core):
        def __init__(self, net: NetConfig, in_size: int) -> None:
            super().__init__()
            self.out_size = self.state_size = net.core_width
            self.cell = nn.GRUCell(in_size, self.out_size)

        def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:      # [B, in_size], [B, state_size]
            state = self.cell(x, state)
            return state, state                                                 # [B, out_size], [B, state_size]

`net.core` names it: `module:Class`, `file.py:Class`, or what a package has registered under the entry point group
`zerobeast.cores`; settings of its own are those of a torso (`zerobeast.rl.nets.torso`). It reads the settings of `net`,
of which `core_width` is meant for it.

A state is float32 numbers, zeros before the first step of an episode, in which brokers, rollouts, replays and exports
carry it. The rules that a core keeps are in `zerobeast.testing.network`.
"""

from contextlib import nullcontext

import torch
from torch import Tensor, nn

from zerobeast.common.errors import ConfigError, name_subject, raise_as
from zerobeast.common.settings import NetConfig, load_core
from zerobeast.rl.nets.precision import autocast


class Core(nn.Module):
    """Base class: its `forward` unrolls `step`, or a subclass has a `forward` of its own."""

    out_size: int  #: of the features that it gives
    state_size: int  #: numbers of the state of one environment

    def __init__(self) -> None:
        super().__init__()
        self._dtype = torch.float32

    @property
    def mark(self) -> str:
        """For `layout_id`."""
        return type(self).__qualname__

    def lower(self, dtype: torch.dtype) -> None:
        """Compute in `dtype`, for inference, by autocast: its layers may take no other weights."""
        self._dtype = dtype

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of B environments.

        Args:
          x: [B, in_size] float32.
          state: [B, state_size] float32, zeros where an episode begins.

        Returns:
          features [B, out_size] and the state after the step, [B, state_size].
        """
        raise NotImplementedError

    def forward(self, x: Tensor, first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Unroll over time.

        Args:
          x: [T, B, in_size] float32.
          first: [T, B] bool, True where an episode begins, and the state is reset before the step.
          state: [B, state_size] float32 before step 0.

        Returns:
          features [T, B, out_size] float32 and the state after the last step, [B, state_size] float32.
        """
        outputs = []
        lowered = self._dtype != torch.float32
        with autocast(x.device, self._dtype) if lowered else nullcontext():
            for each, reset in zip(x.unbind(), first.unsqueeze(-1).unbind(), strict=True):
                output, state = self.step(each, state.masked_fill(reset, 0.0))
                state = state.float()
                outputs.append(output.float())
        return torch.stack(outputs), state


def make_core(net: NetConfig, in_size: int) -> Core:
    """Build the core that `net` names.

    Raises:
      ConfigError: it is unknown, cannot be made, or does not return finite numbers of its sizes.
    """
    what = f"net.core {net.core}"
    with name_subject("net.core", net.core):
        make = load_core(net.core)
        with raise_as(ConfigError, f"{what} cannot be made"):
            core = make(net, in_size)
        if not isinstance(core, Core):
            raise ConfigError(f"{what} made {type(core).__name__}, expected a zerobeast.rl.nets.core.Core")
        for name in ("out_size", "state_size"):
            size = getattr(core, name, None)
            if not (isinstance(size, int) and size > 0):
                raise ConfigError(f"{what}: its {name} is {size!r}, expected a number above 0")
        if torch.get_default_device().type != "meta":  # on which only sizes are computed
            _try(core, in_size, what)
        return core


@torch.no_grad()
def _try(core: Core, in_size: int, what: str) -> None:
    """Raise ConfigError unless it unrolls two steps of two environments as it declares."""
    training = core.training
    with raise_as(ConfigError, f"{what} cannot take a step"):
        never = torch.zeros(2, 2, dtype=torch.bool)
        found = core.eval()(torch.zeros(2, 2, in_size), never, torch.zeros(2, core.state_size))
    core.train(training)
    expected = {"features": (2, 2, core.out_size), "state": (2, core.state_size)}
    if not (isinstance(found, tuple) and len(found) == len(expected)):
        raise ConfigError(f"{what}: returned {type(found).__name__}, expected features and a state")
    for value, (name, shape) in zip(found, expected.items(), strict=True):
        shown = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if shown != list(shape) or value.dtype != torch.float32 or not value.isfinite().all():
            raise ConfigError(f"{what}: returned a {name} {shown}, expected finite float32 {list(shape)}")
