"""How IMPALA learns with replay, with a weight of the entropy that adapts, or with values that have units."""

from __future__ import annotations

from typing import Any

from zerobeast.common.algos.circular import Circular
from zerobeast.common.algos.gradient_descent import GradientDescent, Step, summary
from zerobeast.common.algos.impala.config import ImpalaConfig
from zerobeast.common.algos.impala.entropy import EntropyWeight
from zerobeast.common.algos.impala.loss import loss
from zerobeast.common.algos.impala.replay import Replay
from zerobeast.common.algos.protocol import Batch, Learned, Metrics
from zerobeast.common.nets.agent import AgentNet
from zerobeast.common.ops.distributions import Family


class ImpalaLearning:
    """See `zerobeast.common.algos.protocol.Learning`.

    Args:
      config: of IMPALA.
      family: of the policy's distributions.
      net: the policy, which is what is trained.
      descent: over its parameters.
      replay: of old rollouts, which may be none.
      weight: of the entropy bonus; None: as configured.
      frame_stack: k of the observations: batches and rollouts are held with each frame once.
    """

    def __init__(
        self,
        config: ImpalaConfig,
        family: Family,
        net: AgentNet,
        descent: GradientDescent,
        replay: Replay,
        weight: EntropyWeight | None,
        frame_stack: int,
    ) -> None:
        self._config, self._family, self._net = config, family, net
        self._descent, self._replay, self._weight = descent, replay, weight
        self._frame_stack = frame_stack
        self._circular: Circular[Batch] = Circular(config.batches, config.uses)

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        """Learn from a batch, and from those that came before it: V-trace corrects for their age."""
        mixed = self._replay.mix(batch.packed(self._frame_stack))
        learned = summary([self._step(each.unpacked(), agent_steps) for each in self._circular.add(mixed)])
        self._net.observe(batch.obs[:-1])  # once, however often it is used; not before, as in `OneStep`
        return learned

    def state(self) -> dict[str, Any]:
        """What training has to remember; rollouts and batches that may be used again are in it whole."""
        return {
            "optimizer": self._descent.state(),
            "batches": [batch._asdict() for batch in self._circular.unfinished],
            "replay": self._replay.state(),
            "entropy_weight": None if self._weight is None else self._weight.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`, or from that of a run without replay and an entropy that adapts."""
        self._descent.load(state["optimizer"])
        device = self._net.value.weight.device
        self._circular.load([Batch.restored(entries, device) for entries in state.get("batches", ())])
        if "replay" in state:
            self._replay.load(state["replay"], device)
        weight = state.get("entropy_weight")
        if self._weight is not None and weight is not None:
            self._weight.load(weight)

    def _step(self, batch: Batch, agent_steps: int) -> tuple[Step, Metrics]:
        weight = self._weight
        cost = self._config.entropy_cost if weight is None else weight.value
        with self._descent.autocast():
            total, targets, metrics = loss(self._config, self._family, self._net, batch, entropy_cost=cost)
        step = self._descent.step(total, agent_steps)
        if step.applied:
            self._net.observe_targets(targets, batch.mask, batch.task)
        if weight is not None:
            metrics["entropy_cost"] = weight.value
            if step.applied and batch.mask.any():
                weight.step(metrics["entropy"], agent_steps)
        return step, metrics
