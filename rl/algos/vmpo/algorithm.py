"""V-MPO: a copy of the policy that acts is trained, and replaces the policy periodically."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

from torch import Tensor

from zerobeast.common.wire import ArraySpace
from zerobeast.rl.algos.policy_gradient.actor_critic import ActorCritic, policy_logits, steps
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.algos.vmpo.config import VMPOConfig
from zerobeast.rl.algos.vmpo.loss import loss
from zerobeast.rl.algos.vmpo.multipliers import Multipliers
from zerobeast.rl.data import Batch
from zerobeast.rl.learning import GradientDescent, OneBatch, Target, summary
from zerobeast.rl.protocol import Learned


class VMPO(ActorCritic[VMPOConfig]):
    """See `zerobeast.rl.protocol.Algorithm`."""

    def learning(self, net: PolicyAndValue) -> VMPOLearning:
        """Policy and multipliers each have an optimiser, so that neither's rate or clip affects the other."""
        return VMPOLearning(self, net)


class VMPOLearning(OneBatch):
    """See `zerobeast.rl.protocol.Learning`.

    Args:
      algorithm: provides the settings and the distributions.
      net: the policy that acts; a copy of it is trained.
    """

    def __init__(self, algorithm: VMPO, net: PolicyAndValue) -> None:
        run, config = algorithm.config, algorithm.settings
        self._config, self._family = config, algorithm.family
        self._target = Target(source=deepcopy(net), copy=net, period=config.target_period, acts=True)
        self._descent = GradientDescent(run, config, self._target.source.parameters())
        real = isinstance(algorithm.env.action, ArraySpace) and algorithm.env.action.kind == "box"
        self._multipliers = Multipliers(config, real=real).to(net.device)
        constant = {"optimizer": "adam", "learning_rate": config.multiplier_rate, "schedule": "constant"}
        pace = config.model_copy(update={**constant, "max_grad_norm": math.inf})
        self._pace = GradientDescent(run, pace, self._multipliers.parameters())
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
            online.observe(steps(batch.obs, slice(-1)))  # not earlier: the loss compares with the policy that acted
        changed = step.applied and self._target.count()
        self._version += changed
        return summary([(step, found.metrics)])._replace(changed=changed)

    def state(self) -> dict[str, Any]:
        """The training state, for a checkpoint."""
        return {
            "target": self._target.state(),
            "multipliers": self._multipliers.state_dict(),
            "optimizer": self._descent.state(),
            "multipliers_optimizer": self._pace.state(),
            "version": self._version,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self._target.load(state["target"])
        self._multipliers.load_state_dict(state["multipliers"])
        self._descent.load(state["optimizer"])
        self._pace.load(state["multipliers_optimizer"])
        self._version = state["version"]

    def _target_logits(self, batch: Batch) -> Tensor:
        """[T, B, A] of the policy that acts now: taken from rollouts of its version, and computed for all others."""
        others = (batch.policy_version != self._version).any(0).nonzero().squeeze(-1)
        if not len(others):
            return batch.extras["logits"]
        return batch.extras["logits"].index_copy(1, others, policy_logits(self._target.copy, batch.pick(others)))
