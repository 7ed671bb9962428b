"""The interface between an algorithm and the services. It contains no loop.

The broker calls `network` and `act`. The learner calls `network` and `learning`, and runs this loop, which is the same
for every algorithm:

    net = algorithm.network()
    learning = algorithm.learning(net)
    while training:
        if not learning.due:
            learning.add(next(rollouts), agent_steps)
        if learning.due and learning.step(agent_steps).changed:
            publish(net)

An iteration takes at most one step, so the learner's other work never waits longer than that.

`net` is always the policy that acts; it is also published, saved as the checkpoint's `model` and evaluated. Everything
else belongs to the algorithm's `Learning`, which also decides how many steps each batch gets, and how many optimiser
steps each of those takes. So the interface needs nothing more for

    a target network          `deepcopy(net)`, in `state`
    a target that acts        `net` is the target; a copy is trained, and `changed` shows when it was copied back
    multipliers               an `nn.Module`, in the policy's `GradientDescent` or in its own, and in `state`
    old batches               `rollouts.batch.packed(k)`, or `copy()`; in `state` if they will be used again
    rows in a file            `rollouts.rows`, in `config.store`, which outlives it: `recover_rows`, "after_store"
    a pace of its own         `due`, by `zerobeast.rl.data.pace`
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from zerobeast.common.wire import EnvSpec, Origin, PolicySpec
from zerobeast.rl.data import Batch, Pace, Rollouts
from zerobeast.rl.nets import Network, StepInput
from zerobeast.rl.ops.distributions import Distribution


class Act(NamedTuple):
    """The policy's answer to one step of B environments."""

    action: Any  #: [B, *action shape], or a tree of such
    extras: dict[str, Tensor]  #: [B, *shape] each, by name, as listed in `Algorithm.policy`


class Sampling(NamedTuple):
    """How the actions of one step are chosen."""

    #: [B] int64, each environment's number among those served here, the same at all its steps; used for exploration
    #: that differs by environment, as in `rl.algos.value.exploration`
    slots: Tensor
    generator: torch.Generator  #: source of all randomness
    greedy: bool  #: take the likeliest action instead of drawing one


Metrics = dict[str, Tensor]


class Learned(NamedTuple):
    """The result of one step."""

    steps: int  #: optimiser steps that were applied; 0 if nothing was learned
    skipped: int  #: optimiser steps that were not, because the loss or gradient was not finite
    changed: bool  #: whether the policy that acts has changed, so that `policy_version` increases by 1
    loss: float  #: of the last step
    grad_norm: float  #: of the last step, before clipping
    learning_rate: float
    metrics: Metrics  #: detached scalars to plot, on the device; the same names in every step that learned


#: When actors get back the credit of a batch. after_step: once the step after its `add` is published, so that they
#: act with what was learned from it. after_store: once `add` has returned, before any step.
Credit = Literal["after_step", "after_store"]


#: entries of `Learning.state` that count, hold or measure what a run has collected: a run that begins from another has
#: its own, and so has each rank of one, while all other entries are the same on all ranks
OF_ITS_RUN = frozenset(
    {"replay", "pace", "batches", "version", "episodic_memory", "unmerged", "episode_returns", "improved"}
)


class Learning(Protocol):
    """How one network learns: its optimisers and all other training state.

    If a copy of the network is trained, and not the network itself, it is `TrainsCopy`.

    With several ranks (`zerobeast.rl.ops.ranks`), each adds rollouts of its own: with "after_step" as many as the
    others, some perhaps without a valid transition; with "after_store" they may differ. A step is one of all ranks
    together, once it is due on all of them, and leaves the same weights on all. For them to begin with the same ones,
    torch's generator is seeded alike until `Algorithm.learning` has returned; then each may have a seed of its own.
    """

    @property
    def credit(self) -> Credit:
        """When a batch is acknowledged; it never changes.

        An acknowledged batch is never sent again. With "after_store" it must be in `config.store` when `add` returns,
        where the next process must find it, however this one ends.
        """

    @property
    def due(self) -> bool:
        """Whether `step` has something to learn from. While it is True, no batch is added.

        So it must become False after a finite number of steps. The run ends when it does so after the last batch.
        """

    @property
    def pace(self) -> Pace | None:
        """The pace that `due` follows, for statistics of its waits; None if every batch is due on arrival."""

    def add(self, rollouts: Rollouts, agent_steps: int) -> None:
        """Take rollouts: hold their batch for the next step, or store their rows. Only while no step is due.

        Args:
          rollouts: the caller owns their memory and reuses it after the next step, or with "after_store" once this
            returns. The same goes for `rollouts.batch`; `batch.packed(k)` is a copy.
          agent_steps: of the run so far, without these rollouts.

        Raises:
          BeastError: the rows cannot be stored. This ends the learner before any of the batch is acknowledged.
        """

    def step(self, agent_steps: int) -> Learned:
        """Learn from what was added. Only while `due`.

        Args:
          agent_steps: of the run so far, including all batches that were added.

        Raises:
          Diverged: the weights overflow.
        """

    def recover_rows(self) -> Sequence[Origin]:
        """Rows in `config.store` that are newer than the loaded `state`, in the order in which they were added.

        Called once, after `load` if there is a checkpoint. A killed process left these rows. Whether or not they were
        acknowledged, they are never sent again from now on. If `add` was cut short, the rows of a batch up to some row
        are here, and the later ones are sent again. Acknowledged rows that precede the last row of their stream here
        but are missing, because they were refused or the store has overwritten them, count as undone.
        """

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold besides the policy: plain values and tensors, by name.

        The names of OF_ITS_RUN are for rows, and for what counts them; all others are for what is learned.
        """

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`, bit for bit. Settings remain those of this start.

        Raises:
          CheckpointError: `state` is from another kind of optimiser.
          KeyError, TypeError, ValueError, RuntimeError: it is not what `state()` returned.
        """


@runtime_checkable
class Algorithm(Protocol):
    """One algorithm for one environment. It may have more for `zerobeast.load`: see `HasValue` and the others below."""

    env: EnvSpec

    @property
    def policy(self) -> PolicySpec:
        """What actors need to know about the policy."""

    def network(self) -> Network:
        """A new network, the same on every call with the same settings: it depends on their seed."""

    def act(self, net: Network, inputs: StepInput, core: Tensor, sampling: Sampling) -> tuple[Act, Tensor]:
        """Choose actions for one step.

        Args:
          net: the policy; `net.agent_steps` is the run's agent steps when it was published.
          inputs: one step, T = 1.
          core: [B, core_size] before this step.
          sampling: how actions are chosen.

        Returns:
          the answer, and the state after this step, [B, core_size]; all without gradient.
        """

    def divergence(self, net: Network, batch: Batch) -> Tensor:
        """How far `net` is from the policies that acted, [T, B] >= 0, and 0 where their answers are the same.

        It is NaN where only one action was legal, or may be 0 there.

        Used only by `sync.rule adaptive`.
        """

    def learning(self, net: Network) -> Learning:
        """Begin to train `net`, on the device where it is. Rows may be kept in `config.store`."""


@runtime_checkable
class HasDistribution(Protocol):
    """An algorithm whose actions are drawn from distributions."""

    def distribution(self, net: Network, inputs: StepInput, core: Tensor, /) -> Distribution:
        """That of the actions of one step, [B], with gradient; arguments are those of `Algorithm.act`."""


@runtime_checkable
class HasValue(Protocol):
    """An algorithm whose policy has values, in units of the rewards that are learned from, unless it is `HasUnit`."""

    def value(self, net: Network, inputs: StepInput, core: Tensor, /, task: int = 0) -> Tensor:
        """[B] of one step, with gradient, in the task of this number; arguments are those of `Algorithm.act`."""


@runtime_checkable
class HasActionValues(Protocol):
    """An algorithm that values each choice, in the units of `HasValue`."""

    def action_values(self, net: Network, inputs: StepInput, core: Tensor, /) -> Tensor:
        """[B, A] of one step; arguments are those of `Algorithm.act`."""


@runtime_checkable
class HasUnit(Protocol):
    """An algorithm that learns values of rewards which it scales by itself."""

    def unit(self, learning: dict[str, Any], /) -> float:
        """Of its values, in rewards that are learned from, given the state of `Learning` of a checkpoint."""


@runtime_checkable
class TrainsCopy(Protocol):
    """Learning that trains a copy of the network that acts."""

    trained: Network
