"""A core of one's own: a gated recurrent unit (Cho et al. 2014, equations 5 to 8) in place of the LSTM.

beast train --env CartPole-v1 --algo r2d2 --net.core docs/examples/gru.py:GRU --net.core_width 64
"""

from torch import Tensor, nn

from zerobeast.common.settings import NetConfig
from zerobeast.rl.nets.core import Core


class GRU(Core):
    """Its state is its output.

    Args:
      net: the width is its `core_width`.
      in_size: numbers that the torso, the last action and the last reward give.
    """

    def __init__(self, net: NetConfig, in_size: int) -> None:
        super().__init__()
        self.out_size = self.state_size = net.core_width
        self.cell = nn.GRUCell(in_size, self.out_size)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of B environments: [B, in_size] and [B, state_size] -> the new state, twice."""
        state = self.cell(x, state)
        return state, state
