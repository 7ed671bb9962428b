"""How V-MPO learns: a copy of the policy that acts is trained, and the policy follows it in leaps."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from zerobeast.common.algos.actor_critic import policy_logits
from zerobeast.common.algos.gradient_descent import GradientDescent, summary
from zerobeast.common.algos.protocol import Batch, Learned
from zerobeast.common.algos.target import Target
from zerobeast.common.algos.vmpo.config import VMPOConfig
from zerobeast.common.algos.vmpo.loss import loss
from zerobeast.common.algos.vmpo.multipliers import Multipliers
from zerobeast.common.nets.agent import AgentNet
from zerobeast.common.ops.distributions import Family


class VMPOLearning:
    """See `zerobeast.common.algos.protocol.Learning`.

    Args:
      config: of V-MPO.
      family: of the policy's distributions.
      target: its source is trained, its copy acts.
      multipliers: of the source's loss.
      descent: over the parameters of the source.
      pace: over those of the multipliers.
    """

    def __init__(
        self,
        config: VMPOConfig,
        family: Family,
        target: Target[AgentNet],
        multipliers: Multipliers,
        descent: GradientDescent,
        pace: GradientDescent,
    ) -> None:
        self._config, self._family = config, family
        self._target, self._multipliers = target, multipliers
        self._descent, self._pace = descent, pace
        self._version = 0  #: of the policy that acts, as in `Batch.policy_version`

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        """One step of each optimiser."""
        if not batch.mask.any():
            return summary([])
        online = self._target.source
        with self._descent.autocast():
            target_logits = self._target_logits(batch)
            found = loss(self._config, self._family, online, self._multipliers, batch, target_logits)
        step = self._descent.step(found.policy, agent_steps)
        if step.applied:
            self._pace.step(found.multipliers, agent_steps)
            self._multipliers.project()
            online.observe_targets(found.targets, batch.mask, batch.task)
            online.observe(batch.obs[:-1])  # not before: the loss compares with the policy that acted
        changed = step.applied and self._target.count()
        self._version += changed
        return summary([(step, found.metrics)])._replace(changed=changed)

    def state(self) -> dict[str, Any]:
        """What training has to remember."""
        return {
            "target": self._target.state(other=self._target.source),
            "multipliers": self._multipliers.state_dict(),
            "optimizer": self._descent.state(),
            "multipliers_optimizer": self._pace.state(),
            "version": self._version,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self._target.load(state["target"], other=self._target.source)
        self._multipliers.load_state_dict(state["multipliers"])
        self._descent.load(state["optimizer"])
        self._pace.load(state["multipliers_optimizer"])
        self._version = state["version"]

    def _target_logits(self, batch: Batch) -> Tensor:
        """[T, B, A] of the policy that acts now: as rollouts of its version say, and asked again for all others."""
        others = (batch.policy_version != self._version).any(0).nonzero().squeeze(-1)
        if not len(others):
            return batch.behaviour_logits
        return batch.behaviour_logits.index_copy(1, others, policy_logits(self._target.copy, batch.pick(others)))
