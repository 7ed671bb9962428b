"""What an algorithm is to the services, and no loop.

The broker asks for `network` and calls `act`. The learner asks for `network` and for `learning`, and turns this loop,
which is the same for every algorithm:

    net = algorithm.network()
    learning = algorithm.learning(net)
    while training:
        if not learning.due:
            learning.add(next(rollouts), agent_steps)
        if learning.due and learning.step(agent_steps).changed:
            publish(net)

A turn takes one step at most, so that nothing else of the learner waits for longer than that.

`net` is always the policy that acts, and the one that is published, saved as the checkpoint's `model` and evaluated.
What else an algorithm has belongs to its `Learning`, which also decides how many steps a batch is worth, and how many
steps of the optimiser each of them is. So there is nothing more to a seam for

    a target network          `deepcopy(net)`, in `state`
    a target that acts        `net` is the target; the copy is trained, and `changed` says when it came back
    multipliers               an `nn.Module` of them, with the policy in one `GradientDescent` or in its own, in `state`
    old batches               `rollouts.batch.packed(k)`, or `copy()`; in `state` as far as they count
    rows in a file            `rollouts.rows`, in `config.store`, which outlives the process: `recovered`, "after_store"
    a pace of its own         `due`, by `zerobeast.common.algos.pace`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from zerobeast.common.algos.batch import Batch
from zerobeast.common.algos.pace import Pace
from zerobeast.common.algos.rollouts import Rollouts
from zerobeast.common.nets.network import Network, StepInput
from zerobeast.common.wire.records import Origin
from zerobeast.common.wire.specs import EnvSpec, PolicySpec


class Act(NamedTuple):
    """The policy's answer to one step of B environments."""

    action: Any  #: [B, *action shape], or a tree of such
    extras: dict[str, Tensor]  #: [B, *shape] each, by name: those of `Algorithm.policy`

    def by_name(self) -> dict[str, Any]:
        """As `zerobeast.common.wire.records.act_record` has it."""
        return {"action": self.action, **self.extras}


class Sampling(NamedTuple):
    """How the actions of one step are chosen."""

    #: [B] int64, a number of each environment among those that are acted for here, the same at all its steps: what
    #: exploration of its own goes by, as in `algos.exploration`
    slots: Tensor
    generator: torch.Generator  #: source of all randomness
    greedy: bool  #: take the likeliest action instead of drawing one


Metrics = dict[str, Tensor]


class Learned(NamedTuple):
    """What one step did."""

    steps: int  #: of the optimiser that were applied; 0 where nothing was learned
    skipped: int  #: that were not, because loss or gradient was not finite
    changed: bool  #: whether the policy that acts is another one now, whose `policy_version` is then the next
    loss: float  #: of the last step
    grad_norm: float  #: of the last step, before clipping
    learning_rate: float
    metrics: Metrics  #: detached scalars worth a curve each, on the device; the same names in all steps that learned


#: When actors get the credit of a batch back. after_step: when the step after its `add` is published, so that they
#: act with what was learned from it. after_store: when `add` has returned, before any step.
Credit = Literal["after_step", "after_store"]


class Learning(Protocol):
    """How one network learns: optimisers and all other state of training."""

    @property
    def credit(self) -> Credit:
        """When a batch is acknowledged: the same at all times.

        What is acknowledged never comes again. With "after_store" it has to be in `config.store` when `add` returns,
        and to be found there by the next process, however this one ends.
        """

    @property
    def due(self) -> bool:
        """Whether `step` has something to learn from. While it has, no batch is added.

        So it must become False after a finite number of steps. The run ends when it does after the last batch.
        """

    @property
    def pace(self) -> Pace | None:
        """What `due` follows, for the figures of its waits; None if a batch is due as it comes."""

    def add(self, rollouts: Rollouts, agent_steps: int) -> None:
        """Take rollouts in: hold their batch for the next step, or store their rows. Only while no step is due.

        Args:
          rollouts: their memory is the caller's, and used again after the step that follows, or with "after_store"
            when this returns. So is that of `rollouts.batch`: `batch.packed(k)` stays.
          agent_steps: of the run so far, without these.

        Raises:
          BeastError: its rows cannot be stored. That ends the learner, before anything of the batch is acknowledged.
        """

    def step(self, agent_steps: int) -> Learned:
        """Learn from what was added. Only while it is due.

        Args:
          agent_steps: of the run so far, with all batches that were added.

        Raises:
          Diverged: weights overflow.
        """

    def recovered(self) -> Sequence[Origin]:
        """Rows in `config.store` that `state` did not know, in the order in which they were added.

        Asked once, after `load` if there is a checkpoint: a killed process has left them. They are acknowledged or
        not, and never come again from now on. If `add` was cut short, the rows of a batch before some row are there,
        and those after it come again. Rows of a stream before the last one here that were acknowledged and are missing,
        because they were refused or the store has overwritten them, count as undone.
        """

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to hold besides the policy: plain values and tensors, by name."""

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`, bit for bit. Settings stay those of this start.

        Raises:
          CheckpointError: it is of another kind of optimiser.
          KeyError, TypeError, ValueError, RuntimeError: it is not what `state` gave.
        """


class Algorithm(Protocol):
    """One algorithm for one environment."""

    env: EnvSpec

    @property
    def policy(self) -> PolicySpec:
        """What actors have to know of the policy."""

    def network(self) -> Network:
        """A new network, the same for every call with the same settings: their seed decides."""

    def act(self, net: Network, inputs: StepInput, core: Tensor, sampling: Sampling) -> tuple[Act, Tensor]:
        """Choose actions for one step.

        Args:
          net: the policy; `net.agent_steps` is how far the run was when it was published.
          inputs: with T = 1.
          core: [B, core_size] before this step.
          sampling: how actions are chosen.

        Returns:
          the answer, and the state after this step, [B, core_size]; all without gradient.
        """

    def divergence(self, net: Network, batch: Batch) -> Tensor:
        """How far `net` is from the policies that acted, [T, B] >= 0, and 0 where they answer the same.

        Asked for by `sync.rule adaptive` alone.
        """

    def learning(self, net: Network) -> Learning:
        """Begin to train `net`, on the device where it is. Rows may be kept in `config.store`."""
