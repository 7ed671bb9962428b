"""SAC: a stochastic policy that climbs Q and keeps a given entropy, by a learned temperature."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from zerobeast.rl.algos.control.box_control import BoxControl
from zerobeast.rl.algos.control.box_learning import BoxLearning
from zerobeast.rl.algos.control.networks import BoxPolicy
from zerobeast.rl.algos.sac.config import SACConfig
from zerobeast.rl.algos.sac.policy import DrawnActions, TanhNormal, draw
from zerobeast.rl.algos.sac.temperature import Temperature
from zerobeast.rl.learning import GradientDescent
from zerobeast.rl.nets import StepInput
from zerobeast.rl.ops.distributions import Distribution
from zerobeast.rl.protocol import Metrics


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
    """See `zerobeast.rl.protocol.Learning`.

    Policy and temperature share one optimiser: neither of their losses has a gradient for the other, and Adam treats
    each parameter separately.

    Args:
      algorithm: provides the settings and the box.
      net: the policy that acts and is trained.
    """

    def __init__(self, algorithm: SAC, net: BoxPolicy) -> None:
        super().__init__(algorithm, net, n_critics=2)
        run, settings = algorithm.config, algorithm.settings
        target = -float(algorithm.action_size) if settings.target_entropy is None else settings.target_entropy
        self._temperature = Temperature(settings.temperature, target).to(net.device)
        learned = self._temperature.parameters() if settings.learn_temperature else ()
        self._policy_descent = GradientDescent(run, settings.of_policy(), [*net.mlp.parameters(), *learned])
        self.parts |= {"temperature": self._temperature, "policy_optimizer": self._policy_descent}

    def next_values(self, features: Tensor) -> Tensor:
        """[N]: the smaller target value of a fresh action, plus its entropy (Haarnoja et al. 2018b, equation 3)."""
        drawn = self._draw(features)
        values: Tensor = self._critics.copy(features, drawn.units)
        return values.amin(0) - self._temperature.value * drawn.log_prob

    def improve(self, features: Tensor, agent_steps: int) -> tuple[bool, Metrics]:
        """A step of policy (equation 9) and temperature (equation 18), after which the critics' target follows."""
        with self._policy_descent.autocast():
            drawn, alpha = self._draw(features), self._temperature.value
            values = self._critics.source(features, drawn.units).amin(0)
            policy_loss = (alpha * drawn.log_prob - values).mean()
        step = self._policy_descent.step(policy_loss + self._temperature.loss(drawn.log_prob), agent_steps)
        self._critics.count()
        entropy = -drawn.log_prob.detach().mean()
        return step.applied, {"policy_loss": policy_loss.detach(), "entropy": entropy, "temperature": alpha}

    def _draw(self, features: Tensor) -> DrawnActions:
        outputs = self._net(features)
        return draw(outputs, torch.randn_like(outputs[:, : outputs.shape[-1] // 2]))
