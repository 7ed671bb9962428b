"""The network of algorithms that learn action values: a body, and a head that values each action.

net = QNetwork(config.net, env, dueling=True)
q, core = net(inputs, core)                         # [T, B, A]
net = QNetwork(config.net, env, atoms=51)           # [T, B, A, 51], logits of a distribution over returns
"""

import math

from torch import Tensor, nn

from zerobeast.common.settings import NetConfig
from zerobeast.common.wire import EnvSpec
from zerobeast.rl.nets import Network, StepInput, make_body, without_autocast
from zerobeast.rl.nets.actions import head

VALUE_GAIN = 0.01  #: all values begin near 0, so that no seed decides which action looks best


class QNetwork(Network):
    """Values of the actions of one environment.

    Args:
      config: of the body.
      env: its observations and actions.
      dueling: whether values are made of a state value and the advantages of actions (Wang et al. 2016).
      atoms: None: one value per action. K: K logits per action, of a distribution over returns (Bellemare et al. 2017).
      head_size: width of a hidden layer before the last one, in each stream of the head; 0: none.
      clip_reward: whether the reward that the body gets is clipped.
    """

    def __init__(
        self,
        config: NetConfig,
        env: EnvSpec,
        *,
        dueling: bool = False,
        atoms: int | None = None,
        head_size: int = 0,
        clip_reward: bool = True,
    ) -> None:
        super().__init__()
        self.body = make_body(config, env, clip_reward=clip_reward)
        self.core_size = self.body.core_size
        [n_actions] = env.action.choices
        self.head = QHead(self.body.out_size, n_actions, dueling=dueling, atoms=atoms, hidden_size=head_size)

    def forward(self, inputs: StepInput, core: Tensor) -> tuple[Tensor, Tensor]:
        """Unroll T steps.

        Args:
          inputs: T steps of B environments.
          core: [B, core_size] the state before step 0.

        Returns:
          [T, B, A] or, with atoms, [T, B, A, K], float32 whatever the precision; and the state after the last step,
          [B, core_size].
        """
        [features], core = self.body(inputs, core)
        with without_autocast(core.device):  # heads are small, and the gaps between values are smaller still
            return self.head(features, inputs.action_mask), core


class QHead(nn.Module):
    """From features to the values of A actions, or to K logits of each. Other arguments are those of `QNetwork`."""

    def __init__(self, width: int, n_actions: int, *, dueling: bool, atoms: int | None, hidden_size: int) -> None:
        super().__init__()
        self._shape = (n_actions, atoms or 1)
        self._scalar = atoms is None
        self.advantages = _stream(width, hidden_size, math.prod(self._shape))
        self.value = _stream(width, hidden_size, atoms or 1) if dueling else None

    def forward(self, features: Tensor, legal: Tensor | None = None) -> Tensor:
        """[..., width], and the mask [..., A] of legal actions if there is one -> [..., A] or [..., A, K].

        Dueling: q = v + a - mean a (Wang et al. 2016, equation 9), the mean over legal actions.
        """
        q: Tensor = self.advantages(features).unflatten(-1, self._shape)
        if self.value is not None:
            q = self.value(features).unsqueeze(-2) + q - _mean(q, legal)
        return q.squeeze(-1) if self._scalar else q


def _stream(width: int, hidden_size: int, n: int) -> nn.Module:
    if not hidden_size:
        return head(width, n, VALUE_GAIN)
    return nn.Sequential(
        head(width, hidden_size, math.sqrt(2)), nn.ReLU(inplace=True), head(hidden_size, n, VALUE_GAIN)
    )


def _mean(advantages: Tensor, legal: Tensor | None) -> Tensor:
    """The mean over actions that are legal in [..., A]: [..., A, K] -> [..., 1, K]."""
    if legal is None:
        return advantages.mean(-2, keepdim=True)
    mask = legal.unsqueeze(-1)
    return advantages.masked_fill(~mask, 0.0).sum(-2, keepdim=True) / mask.sum(-2, keepdim=True).clamp(min=1)
