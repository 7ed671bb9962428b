"""Learning with an episodic memory: a `Learning` around that of any recurrent algorithm.

a batch --> the algorithm, and with it rollouts that are remembered
        --> then a step of some of its rollouts: the familiarity buffer, first in, first out
every so many batches: an epoch of the contrastive loss over the buffer; the rarity of its entries; all keys anew
what leaves the buffer --> the episodic memory, in place of what is most familiar there
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from zerobeast.common.errors import ConfigError, raise_as
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire import Origin
from zerobeast.rl.data import Batch, Pace, Rollouts
from zerobeast.rl.learning.returns import discounts, shape_rewards
from zerobeast.rl.memory.contrastive import MINIBATCH, Contrastive
from zerobeast.rl.memory.memory import Entry, Memory, Step, pack_entries, stack_entries, unpack_entries
from zerobeast.rl.memory.rarity import Familiar, priorities, signal_of
from zerobeast.rl.nets import Network
from zerobeast.rl.nets.body import Body
from zerobeast.rl.nets.episodic import EpisodicMemory
from zerobeast.rl.ops.tree import leaves, tree_map
from zerobeast.rl.protocol import Algorithm, Credit, Learned, Learning, TrainsCopy
from zerobeast.rl.settings import LearnerSettings

STATE = "episodic_memory"  #: name of its part of a checkpoint
VALUES = ("value", "q_max")  #: extras that are values of states


class MemoryLearning:
    """See `zerobeast.rl.protocol.Learning`.

    Args:
      learning: of the algorithm.
      algorithm: made it.
      config: of the run.
      net: the policy that acts. If the algorithm trains a copy of it, its learning has that as `trained`.

    Raises:
      ConfigError: the network has no such memory, or the signal of rarity needs values that the policy does not send.
    """

    _added: Batch | None = None  #: of which nothing is remembered before the algorithm has learned from it

    def __init__(self, learning: Learning, algorithm: Algorithm, config: RunConfig, net: Network) -> None:
        self._learning, self._config, self._settings = learning, config, config.memory
        self._env, self._device, self._what = algorithm.env, net.device, f"net.memory {config.net.memory}"
        self._body, self._memory = memory_of(learning.trained if isinstance(learning, TrainsCopy) else net, self._what)
        extras = {field.name for field in algorithm.policy.extras}
        self._values = next((name for name in VALUES if name in extras), "")
        if config.net.memory == "td_error" and not self._values:
            raise ConfigError(path=self._what, expected="another signal", cause=f"{config.section} sends no values")
        self._signal = signal_of(config.net.memory)
        self._familiar = deque[Entry]()
        self._remembered = Memory(self._memory.contents, config.memory.decay)
        self._contrastive = None
        if config.memory.contrastive_rate:
            self._contrastive = Contrastive(config, self._env, self._body, net.device)
        self._batches = 0  #: since the last refresh
        self._owed = 0.0  #: remembered rollouts that rounding left out so far
        self._loss = torch.zeros((), device=net.device)  #: of the last epoch

    @property
    def credit(self) -> Credit:
        """That of the algorithm."""
        return self._learning.credit

    @property
    def due(self) -> bool:
        """Whether the algorithm's step is."""
        return self._learning.due

    @property
    def pace(self) -> Pace | None:
        """That of the algorithm."""
        return self._learning.pace

    def recover_rows(self) -> Sequence[Origin]:
        """Rows of the algorithm's store; what was remembered of them is lost."""
        return self._learning.recover_rows()

    def add(self, rollouts: Rollouts, agent_steps: int) -> None:
        """Hand over the rollouts, and those that are remembered."""
        self._learning.add(self._join_remembered(rollouts), agent_steps)
        if self.credit == "after_store":  # the rows may be reused from now on
            self._take(rollouts.batch)
        else:
            self._added = rollouts.batch

    def step(self, agent_steps: int) -> Learned:
        """One step of the algorithm, with the contents with which the policy has acted, and then one of the memory."""
        learned = self._learning.step(agent_steps)
        if self._added is not None:
            self._take(self._added)
            self._added = None
        if not learned.metrics:
            return learned
        return learned._replace(
            metrics={
                **learned.metrics,
                "memory_entries": torch.full_like(self._loss, len(self._remembered.entries)),
                "memory_gate": self._memory.gate.detach().tanh().abs().mean(),
                "memory_loss": self._loss,
            }
        )

    def state(self) -> dict[str, Any]:
        """The training state of the algorithm, and that of the memory without its contents."""
        own = {
            "familiar": pack_entries(self._familiar),
            "remembered": pack_entries(self._remembered.entries),
            "batches": self._batches,
            "owed": self._owed,
            "contrastive": self._contrastive and self._contrastive.state(),
        }
        return {**self._learning.state(), STATE: own}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`, with the newest entries if there is less room."""
        self._learning.load({name: entry for name, entry in state.items() if name != STATE})
        own, steps = state[STATE], self._config.learner.unroll_length
        self._familiar = deque([*unpack_entries(own["familiar"], self._device, steps)][-self._settings.familiar :])
        self._remembered.restore(unpack_entries(own["remembered"], self._device, steps))
        self._batches, self._owed = own["batches"], own["owed"]
        if self._contrastive and own["contrastive"]:
            self._contrastive.load(own["contrastive"])

    def _join_remembered(self, rollouts: Rollouts) -> Rollouts:
        """The rollouts, and as many remembered ones as `replay_share` requires; what rounding leaves out is owed."""
        share = self._settings.replay_share
        if not share or not self._remembered.entries:
            return rollouts
        wanted = len(rollouts) * share / (1 - share) + self._owed
        drawn = [entry.rollout for entry in self._remembered.draw(round(wanted)) if entry.rollout is not None]
        self._owed = min(wanted - len(drawn), len(rollouts))
        return rollouts.join_old(Batch.join(drawn).unpack()) if drawn else rollouts

    def _take(self, batch: Batch) -> None:
        """Remember steps of a batch, and now and then measure how rare they are."""
        for entry in self._entries(batch):
            self._familiar.append(entry)
            if len(self._familiar) > self._settings.familiar and (oldest := self._familiar.popleft()).key is not None:
                self._remembered.write(oldest)
        self._batches += 1
        if self._batches >= self._settings.refresh_every and len(self._familiar) > 1:
            self._batches = 0
            self._refresh()

    @torch.no_grad()
    def _entries(self, batch: Batch) -> Iterator[Entry]:
        """The same step of each of some rollouts, at random among those with a successor in the rollout."""
        time = int(torch.randint(len(batch.mask) - 1, ()))
        rows = batch.mask[time].nonzero().squeeze(-1)
        part = batch.pick(rows[torch.randperm(len(rows), device=self._device)][: self._settings.steps_per_batch])
        if not part.mask.shape[1]:
            return
        until = tree_map(lambda entry: entry[: time + 1], part.inputs)  # the rest costs time and changes nothing
        hidden, _ = self._body.unroll(until, part.core_state)
        returns, errors = self.returns(part)
        for row in range(part.mask.shape[1]):
            obs = tree_map(lambda frames, at=(time, row): frames[at].clone(), part.obs)
            numbers = (hidden[time, row], errors[time, row], returns[time, row], part.policy_version[time, row])
            rollout = None
            if self._settings.replay_share:
                rollout = part.pick(torch.tensor([row], device=self._device)).pack(self._env.frame_stack)
            yield Entry(Step(obs, *(number.clone() for number in numbers)), rollout)

    def returns(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """[T, B] returns up to the episode's or the rollout's end; [T - 1, B] |TD errors| by the values when acting."""
        settings = self._config.algorithm
        rewards, gamma = batch.reward[1:], 1.0
        if isinstance(settings, LearnerSettings):
            rewards, gamma = shape_rewards(rewards, settings), settings.discount
        discount = discounts(batch, gamma)
        returns, ahead = [], torch.zeros_like(rewards[0])
        for time in reversed(range(len(rewards))):
            ahead = batch.mask[time] * (rewards[time] + discount[time] * ahead)
            returns.append(ahead)
        values = batch.extras.get(self._values, torch.zeros_like(rewards))
        errors = (rewards[:-1] + discount[:-1] * values[1:] - values[:-1]).abs()
        return torch.stack(returns[::-1]), errors

    def _refresh(self) -> None:
        """Train the encoder, compute all keys anew, and measure how rare the familiar entries are.

        Raises:
          ConfigError: the signal of another package fails.
        """
        familiar = stack_entries(self._familiar)
        if self._contrastive:
            self._learn(familiar.obs)
        features = self._features(familiar.obs)
        self._memory.contents.centre.copy_(features.mean(0))
        keys = self._memory.key(features)
        if self._remembered.entries:
            self._remembered.rekey(self._memory.key(self._features(stack_entries(self._remembered.entries).obs)))
        losses = torch.stack([entry.loss if entry.loss is not None else self._loss for entry in self._familiar])
        known = (losses, keys, familiar.td_error, familiar.return_to_go, familiar.version)
        with raise_as(ConfigError, self._what):
            scores = self._signal(Familiar(*(each.cpu() for each in known)))
        if not (isinstance(scores, Tensor) and scores.shape == losses.shape and scores.isfinite().all()):
            raise ConfigError(f"{self._what} returned {scores!r:.200}, expected {len(losses)} finite numbers")
        for entry, key, priority in zip(self._familiar, keys, priorities(scores).tolist(), strict=True):
            entry.key, entry.priority = key, priority

    def _learn(self, obs: Any) -> None:
        """An epoch of the contrastive loss, which is averaged for each entry."""
        assert self._contrastive is not None, "it is on"
        alike = self._memory.key(self._features(obs)) if self._settings.negatives_below < 1 else None
        losses = self._contrastive.epoch(obs, len(self._familiar), alike)
        self._loss, beta = losses.mean(), self._settings.momentum
        for entry, loss in zip(self._familiar, losses, strict=True):
            entry.loss = loss if entry.loss is None else beta * entry.loss + (1 - beta) * loss

    @torch.no_grad()
    def _features(self, obs: Any) -> Tensor:
        """[n, E] of [n, (k,) *frame]."""
        parts = torch.split(torch.arange(len(leaves(obs)[0]), device=self._device), MINIBATCH)
        embedded = (self._body.embed(tree_map(lambda of, part=part: of[part][None], obs))[0] for part in parts)
        return torch.cat(list(embedded))


def memory_of(net: Network, what: str) -> tuple[Body, EpisodicMemory]:
    """The body of a network that has an episodic memory, and that."""
    for part in net.modules():
        if isinstance(part, Body) and part.memory is not None:
            return part, part.memory
    raise ConfigError(path=what, expected="a network whose body is made by make_body and has the core lstm")
