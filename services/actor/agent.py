"""A group of one environment that steps itself: a game or a robot, which asks for an action when it needs one.

It goes through the same states as a group whose environment an env-server hosts, and its rollouts are the same. Only
the observations come from the caller. No sockets, no clock.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.wire.specs import EnvSpec
from zerobeast.common.wire.stream import Stream
from zerobeast.services.actor.group import Group
from zerobeast.services.actor.outbox import MAX_WAITING_EPISODES
from zerobeast.services.actor.planes import InferencePlane, OwnSteps, RolloutsPlane
from zerobeast.services.actor.waits import TIMEOUTS, Wait, Waits


class AgentGroup(Group):
    """One agent of a process that steps itself.

    Args:
      env: as its caller describes it.
      sender: id of this process.
      slot: which of its agents this is.
      broker, learner: their endpoints, for error messages.
      waits: counts what it waits for.
      drops: whether a rollout that the window has no room for is dropped and acting goes on; false: it waits.
    """

    steps: OwnSteps

    def __init__(
        self,
        env: EnvSpec,
        sender: int,
        slot: int,
        broker: str,
        learner: str,
        waits: Waits,
        *,
        drops: bool,
    ) -> None:
        inference = InferencePlane(Stream(sender, slot, {}, f"broker at {broker}"))
        rollouts = RolloutsPlane(Stream(sender, slot, {}, f"learner at {learner}"), None, TIMEOUTS.no_progress)
        super().__init__(slot, 1, OwnSteps(env), inference, rollouts, waits)
        self._drops = drops
        self.dropped = 0  #: rollouts that there was no room for
        self._introduce()

    @property
    def is_free(self) -> bool:
        """Whether it waits for the caller, since the action for the newest observation is ready."""
        return self.waits.current is Wait.ENV

    def observe(self, row: NDArray[np.void], now: float) -> None:
        """Take the next observation, [1] of `step_record`. Its action is ready once `is_free` is True again."""
        assert self.is_free, "one observation at a time"
        self.steps.agent_steps += not self.steps.new
        self.steps.rows[...] = row
        self._observed(now)

    def _is_connected(self) -> bool:
        """As for any group, but with `drops` it can do without the learner once it has the unroll length."""
        if self._drops and self.rollouts.unroll_length is not None:
            return self.inference.stream.open
        return super()._is_connected()

    def _no_room(self) -> None:
        if self._drops:
            builder = self.rollouts.builder
            builder.recycle(builder.take())
            self.dropped += 1
            del self.steps.episodes[:-MAX_WAITING_EPISODES]  # the learner may stay away for days
