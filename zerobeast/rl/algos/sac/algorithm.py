"""SAC: a stochastic policy that climbs Q and keeps a given entropy, by a learned temperature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from zerobeast.rl.algos.control.box_control import BoxControl
from zerobeast.rl.algos.control.box_learning import BoxLearning, NextActions
from zerobeast.rl.algos.control.networks import BoxPolicy
from zerobeast.rl.algos.sac.config import SACConfig
from zerobeast.rl.learning import GradientDescent
from zerobeast.rl.nets import StepInput
from zerobeast.rl.ops.distributions import Distribution
from zerobeast.rl.ops.gaussian import Range, SquashedGaussian, log_slope
from zerobeast.rl.protocol import Metrics

LOG_STD = (-20.0, 2.0)  #: log standard deviations are clipped to this, as in the authors' code


class SAC(BoxControl[SACConfig]):
    """See `zerobeast.rl.protocol.Algorithm`."""

    outputs: ClassVar[int] = 2

    def best(self, outputs: Tensor) -> Tensor:
        """The median of every component."""
        return torch.tanh(outputs.chunk(2, -1)[0])

    def explore(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """A draw from the policy."""
        mean = outputs.chunk(2, -1)[0]
        return draw(outputs, torch.empty_like(mean).normal_(generator=generator)).units

    def distribution(self, net: BoxPolicy, inputs: StepInput, _core: Tensor) -> Distribution:
        """What actions of one step are drawn from, [B], with gradient."""
        return TanhNormal(net(net.encode(inputs)), self.box)

    def learning(self, net: BoxPolicy) -> SACLearning:
        """With twin critics."""
        return SACLearning(self, net)


class SACLearning(BoxLearning):
    """See `BoxLearning`.

    Policy and temperature share one optimiser: neither of their losses has a gradient for the other, and Adam treats
    each parameter separately.
    """

    improvement: ClassVar[Sequence[str]] = ("policy_loss", "entropy", "temperature")

    def __init__(self, algorithm: SAC, net: BoxPolicy) -> None:
        super().__init__(algorithm, net, n_critics=2)
        run, settings = algorithm.config, algorithm.settings
        target = -float(algorithm.action_size) if settings.target_entropy is None else settings.target_entropy
        self._temperature = Temperature(settings.temperature, target).to(net.device)
        learned = self._temperature.parameters() if settings.learn_temperature else ()
        self._policy_descent = GradientDescent(run, settings.of_policy(), [*net.mlp.parameters(), *learned])
        self._improved["temperature"] = self._temperature.value
        self.parts |= {"temperature": self._temperature, "policy_optimizer": self._policy_descent}

    def next_actions(self, features: Tensor) -> NextActions:
        """A fresh draw, whose value is that of the actions plus their entropy (Haarnoja et al. 2018b, equation 3)."""
        drawn = self._draw(features)
        return NextActions(drawn.units, -self._temperature.value * drawn.log_prob)

    def improve(self, features: Tensor, agent_steps: int) -> tuple[bool, Metrics]:
        """A step of policy (equation 9) and temperature (equation 18)."""
        with self._policy_descent.autocast():
            drawn, alpha = self._draw(features), self._temperature.value
            values = self._estimates.means(self._critics(features, drawn.units)).amin(0)
            policy_loss = (alpha * drawn.log_prob - values).mean()
        step = self._policy_descent.step(policy_loss + self._temperature.loss(drawn.log_prob), agent_steps)
        entropy = -drawn.log_prob.detach().mean()
        return step.applied, {"policy_loss": policy_loss.detach(), "entropy": entropy, "temperature": alpha}

    def _draw(self, features: Tensor) -> DrawnActions:
        outputs = self._net(features)
        return draw(outputs, torch.randn_like(outputs[:, : outputs.shape[-1] // 2]))


class TanhNormal(SquashedGaussian):
    """The distribution of the actions, with bounds of its own; log-densities of actions near theirs are cut off."""

    MEAN = Range(-math.inf, math.inf, room=1.0)
    LOG_STD = Range(*LOG_STD, room=1e-6)  # an exporter of graphs takes smaller numbers for 0, and divides by it


class DrawnActions(NamedTuple):
    """Actions, and their log-density under the policy."""

    units: Tensor  #: [N, d] in [-1, 1]
    log_prob: Tensor  #: [N], of actions in these units


def draw(outputs: Tensor, noise: Tensor) -> DrawnActions:
    """Actions of a squashed normal distribution with their exact log-density (Haarnoja et al. 2018b, appendix C).

    A fresh draw's value before the tanh is still known, so no tanh has to be inverted and no mean kept off the bounds,
    as `SquashedGaussian` must do for actions that come with a rollout. Gradients flow through both into the outputs.

    Args:
      outputs: [N, 2 d], means, then log standard deviations, before the tanh.
      noise: [N, d], standard normal.
    """
    mean, log_std = outputs.chunk(2, -1)
    log_std = log_std.clamp(*LOG_STD)
    before = torch.addcmul(mean, log_std.exp(), noise)
    # before the tanh, the density is the noise's density divided by the deviation, whatever the mean
    minus = 0.5 * noise.square() + log_std + log_slope(before)
    return DrawnActions(torch.tanh(before), -minus.sum(-1) - 0.5 * math.log(2 * math.pi) * mean.shape[-1])


class Temperature(nn.Module):
    """alpha, the weight of entropy against rewards (Haarnoja et al. 2018b, section 5).

    It is stored as its logarithm, so it stays positive and moves in proportion to itself: as in the authors' code.

    Args:
      initial: of alpha.
      target: entropy, in nats.
    """

    def __init__(self, initial: float, target: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(initial)))
        self.target = target

    @property
    def value(self) -> Tensor:
        """alpha, [], without gradient."""
        return self.log.detach().exp()

    def loss(self, log_prob: Tensor) -> Tensor:
        """A loss that lowers alpha while the entropy is above the target, and raises it while it is below.

        Equation 18, with log alpha for alpha.

        Args:
          log_prob: [N] of the policy's own actions, used as constants.

        Returns:
          [].
        """
        return -self.log * (log_prob.detach().mean() + self.target)
