"""The items that a replay draws from: single steps with n rewards, or sequences with a burn-in.

items = partial(NStep, n=3, discount=0.99, shape=partial(shaped, settings=settings))
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zerobeast.rl.nets import StepInput
from zerobeast.rl.ops.tree import tree_map
from zerobeast.rl.replay.row_fields import RowFields
from zerobeast.rl.replay.spans import Chains, S, Spans

Ints = NDArray[np.int64]
Items = Callable[[RowFields, Chains], Spans[S]]  #: a kind of items: makes an index of those in some rows


class Transitions(NamedTuple):
    """N transitions of m steps each: m is n, or less if the episode ends first."""

    inputs: StepInput  #: [1, N, ...] of the step in which the action was taken
    action: Any  #: [N, *action shape], or a tree of such
    reward: Tensor  #: [N] float32, the discounted sum of m rewards, each scaled and clipped first
    discount: Tensor  #: [N] float32, gamma^m; 0 if the episode terminated
    next_inputs: StepInput  #: [1, N, ...] m steps later; for a truncated episode, its last observation
    extras: dict[str, Tensor]  #: [N, *shape] each: what the behaviour policy answered besides the action
    next_extras: dict[str, Tensor]  #: [N, *shape] each: the same m steps later


class NStep(Spans[Transitions]):
    """Transitions over n steps.

    One is complete once the policy has answered its last observation: `next_extras` is part of it.

    Args:
      fields, chains: as for `Spans`.
      n: rewards to sum up, at most T.
      discount: gamma.
      shape: rewards of any shape -> scaled and clipped, elementwise.

    Raises:
      ValueError: n is more than T.
    """

    def __init__(
        self, fields: RowFields, chains: Chains, *, n: int, discount: float, shape: Callable[[Tensor], Tensor]
    ) -> None:
        if not 1 <= n <= fields.steps:
            raise ValueError(f"{n} steps of a return, expected 1 to the {fields.steps} of a rollout")
        super().__init__(fields, chains, n, answered=True)
        self._n, self._shape = n, shape
        self._discounts = np.float32(discount) ** np.arange(n + 1, dtype=np.float32)
        self._returns: NDArray[np.float32] = np.zeros(len(self.lengths), np.float32)

    def complete(self, slots: Ints) -> Ints:
        """See `Spans`. The rewards of each item are summed here, once."""
        ids = super().complete(slots)
        starts, ts = np.divmod(ids, self.fields.steps)
        lengths, total = self.lengths[ids], np.zeros(len(ids), np.float32)
        for step in range(self._n):
            live = np.flatnonzero(lengths > step)
            where, at = self._later(starts[live], ts[live] + step)
            rewards = torch.from_numpy(self.fields.values("reward", where, at + 1))
            total[live] += self._discounts[step] * self._shape(rewards).numpy()
        self._returns[ids] = total
        return ids

    def sample(self, ids: Ints, *, obs: bool = True) -> Transitions:
        """See `Spans`."""
        fields = self.fields
        slots, ts = np.divmod(ids, fields.steps)
        lengths = self.lengths[ids].astype(np.int64)
        later, at = self._later(slots, ts + lengths)
        discount = np.where(fields.values("terminated", later, at), np.float32(0), self._discounts[lengths])
        both: object = fields.inputs(np.concatenate([slots, later]), np.concatenate([ts, at]), obs=obs)
        n = len(ids)  # one call for both: most items end in the row they begin in, which is then read once
        return Transitions(
            inputs=tree_map(lambda entry: entry[:n].unsqueeze(0), both),
            action=fields.entries("last_action", slots, ts + 1),
            reward=fields.tensor(self._returns[ids]),
            discount=fields.tensor(discount),
            next_inputs=tree_map(lambda entry: entry[n:].unsqueeze(0), both),
            extras=fields.extras(slots, ts),
            next_extras=fields.extras(later, at),
        )

    def _later(self, slots: Ints, offsets: Ints) -> tuple[Ints, Ints]:
        """Slots and t of the steps `offsets` [N] after step 0 of rows [N]: in those rows, or in the ones after them."""
        steps = self.fields.steps
        over = offsets >= steps
        return np.where(over, self.chains.after[slots], slots), offsets - over * steps


class Sequences(NamedTuple):
    """N sequences of L steps and the step after them, time-major; the first `burn_in` steps warm up the memory."""

    inputs: StepInput  #: [L + 1, N, ...]; rewards unclipped, each with the observation that it arrived with
    action: Any  #: [L, N, *action shape], or a tree of such
    terminated: Tensor  #: [L + 1, N] bool
    extras: dict[str, Tensor]  #: [L, N, *shape] each
    core_state: Tensor  #: [N, core_size] before step 0
    mask: Tensor  #: [L, N] bool, True for the transitions to learn from: after the burn-in, all of one episode
    burn_in: int


class BurnIn(Spans[Sequences]):
    """Sequences whose first steps warm up the memory (Kapturowski et al. 2019, R2D2, section 3).

    The part to learn from begins with a rollout, after a burn-in that begins with an earlier rollout and its stored
    state; or it begins with an episode, whose state is zero. In that case the burn-in repeats the episode's first
    step, which resets the memory each time.

    Args:
      fields, chains: as for `Spans`.
      burn_in: steps, a multiple of T.
      length: steps to learn from.

    Raises:
      ValueError: `burn_in` is not a multiple of T, or there is nothing to learn from.
    """

    def __init__(self, fields: RowFields, chains: Chains, *, burn_in: int, length: int) -> None:
        if length < 1 or burn_in < 0 or burn_in % fields.steps:
            raise ValueError(f"a burn-in of {burn_in}, expected a multiple of the {fields.steps} of a rollout")
        self._burn_in, self._length, self._rows = burn_in, length, burn_in // fields.steps
        super().__init__(fields, chains, length, back=self._rows)

    def sample(self, ids: Ints, *, obs: bool = True) -> Sequences:
        """See `Spans`."""
        fields, burn_in = self.fields, self._burn_in
        slots, ts = np.divmod(ids, fields.steps)
        opens = fields.values("first", slots, ts)
        steps = ts[:, None] + np.arange(-burn_in, self._length + 1)
        last = ts[:, None] + self.lengths[ids].astype(np.int64)[:, None]
        earliest = np.where(opens, ts, -burn_in)[:, None]

        def locate(until: Ints) -> tuple[Ints, Ints]:
            where, at = self.locate(slots, np.clip(steps, earliest, until), self._rows)
            return where.T.ravel(), at.T.ravel()

        def time_major(entries: Tensor) -> Tensor:
            return entries.view(-1, len(ids), *entries.shape[1:]) if len(entries) else entries

        seen, answered = locate(last), locate(last - 1)
        inputs: object = fields.inputs(*seen, obs=obs)
        inputs = tree_map(time_major, inputs)
        valid = (steps >= ts[:, None]) & (steps < last)
        return Sequences(
            inputs=inputs,  # type: ignore[arg-type]
            action=tree_map(lambda entry: entry[1:], inputs.last_action),  # type: ignore[attr-defined]
            terminated=time_major(fields.entries("terminated", *seen)),
            extras={name: time_major(entry)[:-1] for name, entry in fields.extras(*answered).items()},
            core_state=fields.core_state(np.where(opens, -1, seen[0][: len(ids)])),
            mask=fields.tensor(np.ascontiguousarray(valid[:, :-1].T)),
            burn_in=burn_in,
        )
