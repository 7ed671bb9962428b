"""A recurrent core that resets its state where an episode begins.

`torch.nn.LSTM` cannot reset rows in the middle of a sequence, and on CPUs its oneDNN path takes eight times as long as
a plain matmul for the one-step batches of inference. Here the input's share of all gates is one matmul over the whole
unroll, and each step adds one more.
"""

import torch
from torch import Tensor, nn

from zerobeast.common.settings import NetConfig
from zerobeast.rl.nets.core import Core


class LSTM(Core):
    """One layer. Its state travels as one flat row per environment: the hidden half, then the cell half.

    Gates are in the order input, forget, output, candidate, so that the three sigmoids are one call. State and gates
    are float32 whatever the matmuls compute in: what accumulates over an episode must not be rounded at each step.

    Args:
      net: H is its `core_width`.
      in_size: width of x.
    """

    def __init__(self, net: NetConfig, in_size: int) -> None:
        super().__init__()
        self.out_size = hidden_size = net.core_width
        self.state_size = 2 * hidden_size
        self.from_input = nn.Linear(in_size, 4 * hidden_size)
        self.from_hidden = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Orthogonal recurrence and a forget bias of 1, so that memory is long at first (Jozefowicz et al. 2015)."""
        nn.init.xavier_uniform_(self.from_input.weight)
        for gate in self.from_hidden.weight.chunk(4):
            nn.init.orthogonal_(gate)
        self.from_input.bias.zero_()
        self.from_input.bias[self.out_size : 2 * self.out_size] = 1.0

    @property
    def mark(self) -> str:
        """None: names and shapes of its parameters are its own. A subclass may compute something else with them."""
        return "" if type(self) is LSTM else super().mark

    def lower(self, dtype: torch.dtype) -> None:
        self.to(dtype)

    def forward(
        self, x: Tensor, first: Tensor, state: Tensor, reinstated: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Unroll over time.

        Args:
          x: [T, B, in_size].
          first: [T, B] bool, True where the state is reset before the step.
          state: [B, 2 H] float32 before step 0.
          reinstated: [T, B, H], added to the hidden states that enter the gates; None: nothing is.

        Returns:
          outputs [T, B, H] float32 and the state after the last step.
        """
        shares = self.from_input(x.to(self.from_input.weight.dtype))
        hidden, cell = state.chunk(2, dim=-1)
        outputs = []
        added = [None] * len(shares) if reinstated is None else reinstated.unbind()
        for share, reset, more in zip(shares.unbind(), first.unsqueeze(-1).unbind(), added, strict=True):
            hidden, cell = hidden.masked_fill(reset, 0.0), cell.masked_fill(reset, 0.0)
            seen = hidden if more is None else hidden + more
            gates = (share + self.from_hidden(seen.to(share.dtype))).float()
            admit, keep, show = gates[:, : 3 * self.out_size].sigmoid().chunk(3, dim=-1)
            candidate = gates[:, 3 * self.out_size :].tanh()
            cell = torch.addcmul(admit * candidate, keep, cell)
            hidden = show * cell.tanh()
            outputs.append(hidden)
        return torch.stack(outputs), torch.cat([hidden, cell], dim=-1)
