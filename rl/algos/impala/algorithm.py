"""IMPALA: V-trace on every batch, and on old rollouts and batches if the settings say so."""

from typing import Any

from zerobeast.rl.algos.impala.config import ImpalaConfig
from zerobeast.rl.algos.impala.entropy import EntropyWeight
from zerobeast.rl.algos.impala.replay import OldRollouts
from zerobeast.rl.algos.policy_gradient.actor_critic import steps
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.algos.policy_gradient.vtrace_loss import VTraceActorCritic, loss
from zerobeast.rl.data import Batch
from zerobeast.rl.learning import Circular, GradientDescent, OneBatch, Step, summary
from zerobeast.rl.protocol import Learned, Learning, Metrics


class Impala(VTraceActorCritic[ImpalaConfig]):
    """See `zerobeast.rl.protocol.Algorithm`."""

    def learning(self, net: PolicyAndValue) -> Learning:
        """One step of the optimiser per batch, unless the settings ask for more than the paper's plain learner."""
        own = self.settings
        plain = own.uses == 1 and not own.replay_share and not own.entropy_target and not own.popart
        return super().learning(net) if plain else ImpalaLearning(self, net)


class ImpalaLearning(OneBatch):
    """Learning with a replay, batch reuse, an adaptive entropy weight or PopArt.

    Held batches and rollouts store each frame once. See `zerobeast.rl.protocol.Learning`.

    Args:
      algorithm: provides the settings and the distributions.
      net: the policy to train.
    """

    def __init__(self, algorithm: Impala, net: PolicyAndValue) -> None:
        run, config = algorithm.config, algorithm.settings
        self._config, self._family, self._net = config, algorithm.family, net
        self._frame_stack = algorithm.env.frame_stack
        self._descent = GradientDescent(run, config, net.parameters())
        self._replay = OldRollouts(config.replay_share, config.replay_rollouts, run.seed)
        self._weight = EntropyWeight(run, config, net.device) if config.entropy_target else None
        self._circular: Circular[Batch] = Circular(config.batches, config.uses)

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        """Learn from a batch, and from earlier ones: V-trace corrects for their age."""
        mixed = self._replay.mix(batch.packed(self._frame_stack))
        learned = summary([self._step(each.unpacked(), agent_steps) for each in self._circular.add(mixed)])
        self._net.observe(steps(batch.obs, slice(-1)))  # once, however often it is used; not earlier, as in `OneStep`
        return learned

    def state(self) -> dict[str, Any]:
        """The training state, for a checkpoint; it holds all rollouts and batches that may be used again."""
        return {
            "optimizer": self._descent.state(),
            "batches": [batch._asdict() for batch in self._circular.unfinished],
            "replay": self._replay.state(),
            "entropy_weight": None if self._weight is None else self._weight.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`, or from that of a run without a replay and an adaptive entropy weight."""
        self._descent.load(state["optimizer"])
        device = self._net.device
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
