"""The witness with a store: its learner acknowledges rollouts as soon as a file has them, before it learns from them.

It does what a replay has to do across kills, without the replay: an append-only file holds the origin of every row, and
the next learner continues after the last one.
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerobeast.common.wire import Origin
from zerobeast.rl.algos.policy_gradient.one_step import LossFunction, OneStep
from zerobeast.rl.algos.policy_gradient.policy_and_value import PolicyAndValue
from zerobeast.rl.data import Rollouts
from zerobeast.rl.learning import GradientDescent
from zerobeast.rl.protocol import Credit
from zerobeast_tools.chaos.witness.algorithm import Witness

_ENTRY = struct.Struct(f"<{len(Origin._fields)}q")


class OriginFile:
    """Origins of rows, in the order in which they were stored. An entry counts once it is whole.

    Args:
      path: of the file; an entry at its end that a kill has torn is cut off.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._path = path
        os.truncate(path, path.stat().st_size // _ENTRY.size * _ENTRY.size)
        self.found = [Origin._make(each) for each in _ENTRY.iter_unpack(path.read_bytes())]
        self.count = len(self.found)

    def append(self, origin: Sequence[int]) -> None:
        """Store one origin."""
        self.write(_ENTRY.pack(*origin))
        self.count += 1

    def write(self, entry: bytes) -> None:
        """Hand bytes to the kernel, which keeps them if this process is killed."""
        with self._path.open("ab") as file:
            file.write(entry)


class StoringLearning(OneStep):
    """See `zerobeast.rl.protocol.Learning`.

    Args:
      net: the policy, which is what is trained.
      descent: over its parameters.
      loss: as of `OneStep`.
      store: the origins of the rows that were added.
    """

    credit: Credit = "after_store"

    def __init__(self, net: PolicyAndValue, descent: GradientDescent, loss: LossFunction, store: OriginFile) -> None:
        super().__init__(net, descent, loss)
        self._store, self._known = store, 0

    def add(self, rollouts: Rollouts, agent_steps: int) -> None:
        """Store where each row came from, and hold a copy of the batch for the next step."""
        for origin in rollouts.batch.origin.tolist():
            self._store.append(origin)
        self._added = rollouts.batch.copy(), agent_steps

    def recover_rows(self) -> Sequence[Origin]:
        """Rows that the checkpoint does not count."""
        return self._store.found[self._known :]

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        return {**super().state(), "rows": self._store.count}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        super().load(state)
        self._known = state["rows"]


class StoringWitness(Witness):
    """See `zerobeast.rl.protocol.Algorithm`."""

    def learning(self, net: PolicyAndValue) -> StoringLearning:
        """One step of the optimiser per batch."""
        descent = GradientDescent(self.config, self.settings, net.parameters())
        return StoringLearning(net, descent, self.loss, OriginFile(self.config.store / "rows"))
