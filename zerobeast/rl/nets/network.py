"""What services require of a network, and what every network gets as input."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zerobeast.rl.nets.normalize import ObsNorm


class StepInput(NamedTuple):
    """The inputs of a network at each step; see `zerobeast.common.wire.records` for the time index."""

    obs: Any  #: [T, B, *frame], or [T, B, k, *frame] with a frame stack of k > 1; a tree if it has several arrays
    last_action: Any  #: [T, B, *action shape], or a tree of such, ignored where first
    reward: Tensor  #: [T, B] float32, unclipped, ignored where first
    first: Tensor  #: [T, B] bool, True where obs opens an episode
    action_mask: Tensor | None = None  #: [T, B, choices of all components] bool, True where legal; None: all are


class Network(nn.Module):
    """Base of networks. Services copy its state, set its dtype and its `agent_steps`.

    Only a network and the algorithm that made it need to agree on what `forward` takes and returns.
    """

    agent_steps: Tensor  #: [] int64, of the run when this version was published; acting schedules follow it
    core_size: int = 0  #: floats in the recurrent state of one environment

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("agent_steps", torch.zeros((), dtype=torch.int64))

    @property
    def device(self) -> torch.device:
        """The device that its state is on."""
        return self.agent_steps.device

    def initial_state(self, batch: int) -> Tensor:
        """The state before an episode: zeros [batch, core_size] float32."""
        return torch.zeros(batch, self.core_size, device=self.device)

    def observe(self, obs: Any, away: Tensor | None = None) -> None:
        """Add observations to the statistics that normalise them, if any do; arguments as for `ObsNorm.observe`."""
        for part in self.modules():
            if isinstance(part, ObsNorm):
                part.observe(obs, away)

    def lower(self, dtype: torch.dtype) -> None:
        """Keep the weights that may be rounded in `dtype`, for inference: those of parts that have this method too."""
        for part in self.children():
            if lower := getattr(part, "lower", None):
                lower(dtype)
