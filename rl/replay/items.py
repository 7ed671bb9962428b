"""The items that a replay draws from: single steps with n rewards, or sequences with a burn-in.

items = NStep(3, 0.99, partial(shaped, settings=settings))
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zerobeast.rl.ops.tree import tree_map
from zerobeast.rl.replay.chains import Chains
from zerobeast.rl.replay.row_fields import RowFields
from zerobeast.rl.replay.samples import Sequences, Transitions
from zerobeast.rl.replay.spans import S_co, Spans

Ints = NDArray[np.int64]


class Items(Protocol[S_co]):
    """A kind of items."""

    def over(self, fields: RowFields, chains: Chains) -> Spans[S_co]:
        """An index of the items in these rows."""


@dataclass(frozen=True)
class NStep:
    """Transitions over n steps.

    Args:
      n: rewards to sum up, at most T.
      discount: gamma.
      shape: rewards of any shape -> scaled and clipped, elementwise.
    """

    n: int
    discount: float
    shape: Callable[[Tensor], Tensor]

    def over(self, fields: RowFields, chains: Chains) -> Spans[Transitions]:
        """See `Items`.

        Raises:
          ValueError: n is more than T.
        """
        if not 1 <= self.n <= fields.steps:
            raise ValueError(f"{self.n} steps of a return, expected 1 to the {fields.steps} of a rollout")
        return _TransitionIndex(self, fields, chains)


class _TransitionIndex(Spans[Transitions]):
    """A transition is complete once the policy has answered its last observation: `next_extras` is part of it."""

    def __init__(self, items: NStep, fields: RowFields, chains: Chains) -> None:
        super().__init__(fields, chains, items.n, answered=True)
        self._items = items
        self._discounts = np.float32(items.discount) ** np.arange(items.n + 1, dtype=np.float32)
        self._returns: NDArray[np.float32] = np.zeros(len(self.lengths), np.float32)

    def complete(self, slots: Ints) -> Ints:
        """See `Spans`. The rewards of each item are summed here, once."""
        ids = super().complete(slots)
        starts, ts = np.divmod(ids, self.fields.steps)
        lengths, total = self.lengths[ids], np.zeros(len(ids), np.float32)
        for step in range(self._items.n):
            live = np.flatnonzero(lengths > step)
            where, at = self._later(starts[live], ts[live] + step)
            rewards = torch.from_numpy(self.fields.values("reward", where, at + 1))
            total[live] += self._discounts[step] * self._items.shape(rewards).numpy()
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


@dataclass(frozen=True)
class BurnIn:
    """Sequences whose first steps warm up the memory (Kapturowski et al. 2019, R2D2, section 3).

    The part to learn from begins with a rollout, after a burn-in that begins with an earlier rollout and its stored
    state; or it begins with an episode, whose state is zero. In that case the burn-in repeats the episode's first
    step, which resets the memory each time.

    Args:
      burn_in: steps, a multiple of T.
      length: steps to learn from.
    """

    burn_in: int
    length: int

    def over(self, fields: RowFields, chains: Chains) -> Spans[Sequences]:
        """See `Items`.

        Raises:
          ValueError: `burn_in` is not a multiple of T, or there is nothing to learn from.
        """
        if self.length < 1 or self.burn_in < 0 or self.burn_in % fields.steps:
            raise ValueError(f"a burn-in of {self.burn_in}, expected a multiple of the {fields.steps} of a rollout")
        return _SequenceIndex(self, fields, chains)


class _SequenceIndex(Spans[Sequences]):
    def __init__(self, items: BurnIn, fields: RowFields, chains: Chains) -> None:
        self._rows = items.burn_in // fields.steps
        super().__init__(fields, chains, items.length, back=self._rows)
        self._items = items

    def sample(self, ids: Ints, *, obs: bool = True) -> Sequences:
        """See `Spans`."""
        fields, burn_in = self.fields, self._items.burn_in
        slots, ts = np.divmod(ids, fields.steps)
        opens = fields.values("first", slots, ts)
        steps = ts[:, None] + np.arange(-burn_in, self._items.length + 1)
        last = ts[:, None] + self.lengths[ids].astype(np.int64)[:, None]
        earliest = np.where(opens, ts, -burn_in)[:, None]

        def located(until: Ints) -> tuple[Ints, Ints]:
            where, at = self.located(slots, np.clip(steps, earliest, until), self._rows)
            return where.T.ravel(), at.T.ravel()

        def time_major(entries: Tensor) -> Tensor:
            return entries.view(-1, len(ids), *entries.shape[1:]) if len(entries) else entries

        seen, answered = located(last), located(last - 1)
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
