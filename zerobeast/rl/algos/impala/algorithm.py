"""IMPALA: V-trace on every batch, and on old rollouts and batches if configured."""

from collections import deque
from typing import Any

import torch
from torch import Tensor

from zerobeast.common.settings import RunConfig
from zerobeast.rl.algos.impala.config import ImpalaConfig
from zerobeast.rl.algos.policy_gradient.actor_critic import ActorCriticLearning
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.algos.policy_gradient.vtrace_loss import VTraceActorCritic, loss
from zerobeast.rl.data import Batch
from zerobeast.rl.learning import Circular, Dual, GradientDescent, Parts, Step, summarize_steps
from zerobeast.rl.ops import ranks
from zerobeast.rl.protocol import Learned, Learning, Metrics

PACE = 0.01  #: learning rate of the entropy's weight in units of its initial value: Adam moves it by about this much


class Impala(VTraceActorCritic[ImpalaConfig]):
    """See `zerobeast.rl.protocol.Algorithm`."""

    def learning(self, net: PolicyAndValue) -> Learning:
        """One step of the optimiser per batch, unless the settings ask for more than the paper's plain learner."""
        own = self.settings
        plain = own.uses == 1 and not own.replay_share and not own.entropy_target and not own.popart
        return super().learning(net) if plain else ImpalaLearning(self, net)


class ImpalaLearning(ActorCriticLearning[ImpalaConfig]):
    """Learning with a replay, batch reuse, an adaptive entropy weight or PopArt.

    Held batches and rollouts store each frame once. See `ActorCriticLearning`.
    """

    optional = ("batches", "replay", "entropy_weight")

    def __init__(self, algorithm: Impala, net: PolicyAndValue) -> None:
        super().__init__(algorithm, net)
        run, config = algorithm.config, algorithm.settings
        self._frame_stack = algorithm.env.frame_stack
        held = -(-config.replay_rollouts // ranks.size())
        self._replay = OldRollouts(config.replay_share, held, ranks.rank_seed(run.seed), net.device)
        self._circular = Circular(config.batches, config.uses, net.device)
        self._weight = EntropyWeight(run, config, net.device) if config.entropy_target else None
        self.parts |= {"batches": self._circular, "replay": self._replay, "entropy_weight": self._weight}

    def update(self, batch: Batch, agent_steps: int) -> Learned:
        """Learn from a batch, and from earlier ones: V-trace corrects for their age."""
        mixed = self._replay.mix(batch.pack(self._frame_stack))
        learned = summarize_steps([self._step(each.unpack(), agent_steps) for each in self._circular.add(mixed)])
        self.observe(batch)  # once, however often it is used
        return learned

    def _step(self, batch: Batch, agent_steps: int) -> tuple[Step, Metrics]:
        weight = self._weight
        cost = self.settings.entropy_cost if weight is None else weight.value
        with self.descent.autocast():
            total, targets, metrics = loss(self.settings, self.family, self.net, batch, entropy_cost=cost)
        step = self.descent.step(total, agent_steps, batch.mask if self.settings.reduction == "mean" else None)
        if step.applied:
            self.net.observe_targets(targets, batch.mask, batch.task)
        if weight is not None:
            metrics["entropy_cost"] = weight.value
            choice = self.family.select_decisions(batch.mask, batch.legal)
            if step.applied and ranks.sum_over_ranks(choice.sum(), "transitions with a choice"):
                weight.step(metrics["entropy"], agent_steps, choice)
        return step, metrics


class OldRollouts:
    """The newest rollouts, first in, first out; each batch is extended by some earlier ones (section 5.2.2).

    They are drawn uniformly with replacement and stay in the replay. V-trace corrects for their age. With a share of 0,
    batches pass through unchanged and nothing is held. Batches are packed, each frame once.

    What rounding takes from a batch is added to later ones, so the share holds on average, however small it is.

    Args:
      share: of a batch's rows that are old, below 1: n new rows are joined by n share / (1 - share) old ones.
      rollouts: maximum number held.
      seed: of the draws.
      device: of rollouts that are restored from a checkpoint.
    """

    def __init__(self, share: float, rollouts: int, seed: int, device: torch.device) -> None:
        self._per_new, self._device = share / (1 - share), device
        self._owed = 0.0  #: old rows that rounding left out so far; below 0: that it added
        self._held: deque[Batch] = deque(maxlen=rollouts)  #: of one row each, oldest first
        self._generator = torch.Generator().manual_seed(seed)

    def mix(self, batch: Batch) -> Batch:
        """The batch, followed by old rows; its own rows are held from now on. The first batch is returned alone."""
        if not self._per_new:
            return batch
        wanted = batch.mask.shape[1] * self._per_new + self._owed
        old = round(wanted)
        self._owed = wanted - old
        if self._held and len(self._held[0].mask) != len(batch.mask):
            self._held.clear()  # they were collected with another unroll_length, before this run was resumed
        picks = torch.randint(len(self._held), (old,), generator=self._generator).tolist() if self._held else []
        mixed = Batch.join([batch, *(self._held[pick] for pick in picks)])
        self._held.extend(batch.each())
        return mixed

    def state(self) -> dict[str, Any]:
        """All held rollouts, and what the next draws depend on."""
        held = [Batch.join(self._held)._asdict()] if self._held else []
        return {"held": held, "generator": self._generator.get_state(), "owed": self._owed}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`, with only its newest rollouts if there is less room, and none if the share is 0."""
        self._generator.set_state(state["generator"].cpu())
        self._held.clear()
        if self._per_new:
            self._owed = state["owed"]
            for entries in state["held"]:
                self._held.extend(Batch.restore(entries, self._device).each())


class EntropyWeight(Parts):
    """The multiplier of `entropy >= entropy_target`, which starts at `entropy_cost`: from the code of SEED RL.

    It never falls to 0, so a policy with more entropy than the target is hardly rewarded for it, but not punished.

    It has its own optimiser. In the policy's optimiser, its gradient would count towards the clipped norm, its pace
    would follow the policy's learning rate, and a run could not continue with it from a checkpoint without it, or vice
    versa.

    Args:
      config: of the run.
      settings: of its algorithm.
      device: of the entropies.
    """

    def __init__(self, config: RunConfig, settings: ImpalaConfig, device: torch.device) -> None:
        # Dual keeps what it measures below a limit, so it measures minus the entropy
        self._dual = Dual(settings.entropy_cost, limit=-settings.entropy_target).to(device)
        pace = {"optimizer": "adam", "learning_rate": PACE * settings.entropy_cost, "schedule": "constant"}
        # with Adam's epsilon at a hundredth of a nat, steps shrink when the entropy is nearer to its target than that
        own = settings.model_copy(update={**pace, "epsilon": 0.01})
        self._descent = GradientDescent(config, own, self._dual.parameters())
        self.parts = {"weight": self._dual, "optimizer": self._descent}

    @property
    def value(self) -> Tensor:
        """[], without gradient; steps do not change it in place."""
        return self._dual.value.detach().clone()

    def step(self, entropy: Tensor, agent_steps: int, mask: Tensor) -> None:
        """Grow if the mean `entropy` [] over `mask` is below the target, shrink if it is above."""
        self._descent.step(self._dual.loss(-entropy), agent_steps, mask)
        self._dual.project()
