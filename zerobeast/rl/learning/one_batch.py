"""On-policy learning: each batch is learned from in one step on arrival, and acknowledged when that is published."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from zerobeast.common.wire import Origin
from zerobeast.rl.data import Batch, Pace, Rollouts
from zerobeast.rl.learning.parts import Parts
from zerobeast.rl.protocol import Credit, Learned


class OneBatch(Parts, ABC):
    """Implements `add` and `step` of `zerobeast.rl.protocol.Learning` in terms of one method: `update`."""

    credit: Credit = "after_step"
    pace: Pace | None = None
    _added: tuple[Batch, int] | None = None  #: the batch of the next step, and the agent steps before it

    @property
    def due(self) -> bool:
        """Whether there is a batch that has not been learned from."""
        return self._added is not None

    def add(self, rollouts: Rollouts, agent_steps: int) -> None:
        """Hold the batch for the next step."""
        self._added = rollouts.batch, agent_steps

    def step(self, agent_steps: int) -> Learned:
        """Learn from the batch; schedules follow the agent steps before it."""
        del agent_steps
        assert self._added is not None, "no step is due"
        (batch, before), self._added = self._added, None
        self.begin(before)
        return self.update(batch, before)

    def recover_rows(self) -> Sequence[Origin]:
        """None: rows are kept only in checkpoints."""
        return ()

    def begin(self, agent_steps: int) -> None:
        """Prepare for the update after so many agent steps of the run, as by the schedules of coefficients."""

    @abstractmethod
    def update(self, batch: Batch, agent_steps: int) -> Learned:
        """Learn from a batch; `agent_steps` counts those of the run before it."""
