"""How V-MPO learns: a copy of the policy that acts is trained, and the policy follows it in leaps."""

from __future__ import annotations

from typing import Any

from common.algos.descent import Descent, summary
from common.algos.protocol import Batch, Learned
from common.algos.target import Target
from common.algos.vmpo.config import VMPOConfig
from common.algos.vmpo.loss import loss
from common.algos.vmpo.multipliers import Multipliers
from common.nets.agent import AgentNet
from common.ops.distributions import Family


class VMPOLearning:
    """See `common.algos.protocol.Learning`.

    Args:
      config: of V-MPO.
      family: of the policy's distributions.
      target: its source is trained, its copy acts.
      multipliers: trained with the source.
      descent: over the parameters of both.
    """

    def __init__(
        self, config: VMPOConfig, family: Family, target: Target[AgentNet], multipliers: Multipliers, descent: Descent
    ) -> None:
        self._config, self._family = config, family
        self._target, self._multipliers, self._descent = target, multipliers, descent

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        """One step of the optimiser."""
        if not batch.mask.any():
            return summary([])
        online = self._target.source
        with self._descent.autocast():
            total, targets, metrics = loss(self._config, self._family, online, self._multipliers, batch)
        step = self._descent.step(total, agent_steps)
        if not step.applied:
            return summary([(step, metrics)])
        self._multipliers.project()
        online.observe_targets(targets, batch.mask, batch.task)
        online.observe(batch.obs[:-1])  # not before: the loss compares with the policy that acted
        return summary([(step, metrics)])._replace(changed=self._target.count())

    def state(self) -> dict[str, Any]:
        """What training has to remember."""
        return {
            "target": self._target.state(other=self._target.source),
            "multipliers": self._multipliers.state_dict(),
            "optimizer": self._descent.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self._target.load(state["target"], other=self._target.source)
        self._multipliers.load_state_dict(state["multipliers"])
        self._descent.load(state["optimizer"])
