"""IMPACT: learn from old batches as well as new ones, staying near a target that is replaced periodically."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from zerobeast.rl.algos.impact.config import ImpactConfig
from zerobeast.rl.algos.impact.divergence import DivergenceWeight
from zerobeast.rl.algos.impact.loss import loss
from zerobeast.rl.algos.policy_gradient.actor_critic import ActorCritic, policy_logits, steps
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.data import Batch
from zerobeast.rl.learning import Circular, GradientDescent, OneBatch, Step, Target, summary
from zerobeast.rl.protocol import Learned, Metrics


@dataclass
class KeptBatch:
    """A batch in the circular buffer."""

    batch: Batch  #: packed
    target_logits: Tensor | None = None  #: [T, B, A], from the first use until the target changes


class Impact(ActorCritic[ImpactConfig]):
    """See `zerobeast.rl.protocol.Algorithm`."""

    def learning(self, net: PolicyAndValue) -> ImpactLearning:
        """Several steps per batch, spread over the batches that follow it."""
        return ImpactLearning(self, net)


class ImpactLearning(OneBatch):
    """See `zerobeast.rl.protocol.Learning`.

    Held batches store each frame once.

    Args:
      algorithm: provides the settings and the distributions.
      net: the policy to train.
    """

    def __init__(self, algorithm: Impact, net: PolicyAndValue) -> None:
        config = algorithm.settings
        self._config, self._family, self._net = config, algorithm.family, net
        self._frame_stack = algorithm.env.frame_stack
        self._descent = GradientDescent(algorithm.config, config, net.parameters())
        period = config.batches * config.uses  # section 4.1.1
        self._target = Target(source=net, copy=deepcopy(net).requires_grad_(requires_grad=False), period=period)
        self._circular: Circular[KeptBatch] = Circular(config.batches, config.uses)
        self._weight = DivergenceWeight(config.kl_cost, config.kl_target)

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        """Learn from a batch, and from earlier ones."""
        due = self._circular.add(KeptBatch(batch.packed(self._frame_stack)))
        learned = summary([self._step(kept, agent_steps) for kept in due])
        self._net.observe(steps(batch.obs, slice(-1)))  # not earlier: the loss compares with the policy that acted
        return learned

    def state(self) -> dict[str, Any]:
        """The training state, for a checkpoint.

        It holds the batches that will be used again: without them, the steps after a restart would be different ones.
        The target's answers to them are left out, because they can be computed again.
        """
        return {
            "optimizer": self._descent.state(),
            "target": self._target.state(),
            "batches": [kept.batch._asdict() for kept in self._circular.unfinished],
            "divergence_weight": self._weight.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self._descent.load(state["optimizer"])
        self._target.load(state["target"])
        device = self._net.device
        self._circular.load([KeptBatch(Batch.restored(entries, device)) for entries in state["batches"]])
        self._weight.load(state["divergence_weight"])

    def _step(self, kept: KeptBatch, agent_steps: int) -> tuple[Step, Metrics]:
        batch, cost = kept.batch.unpacked(), self._weight.value
        with self._descent.autocast():
            if kept.target_logits is None:
                kept.target_logits = policy_logits(self._target.copy, batch)
            total, terms = loss(self._config, self._family, self._net, batch, kept.target_logits, kl_cost=cost)
        step = self._descent.step(total, agent_steps)
        if step.applied:
            self._weight.observe(float(terms["kl"]))
            if self._target.count():
                self._weight.adapt()
                for each in self._circular.held:
                    each.target_logits = None  # they are the old target's
        return step, terms
