"""The actor of `beast bench rollouts`: the outboxes of its env groups, with rollouts that are always ready."""

from __future__ import annotations

import time
from collections import deque
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.transport import ClientPort, Context, Poller, random_id
from zerobeast.common.wire.messages import Kind, Plane
from zerobeast.common.wire.records import rollout_record
from zerobeast.common.wire.stream import Stream
from zerobeast.services.actor.outbox import Outbox
from zerobeast.services.learner.admission import Terms
from zerobeast.tools.bench.processes import Leash, say

MAX_WAIT_S = 0.1


class Group:
    """One env group: an outbox, and rollouts [N] to put in as soon as it has room.

    Args:
      sender: id of the actor.
      slot: which of its groups this is.
      terms: of the rollouts.
    """

    def __init__(self, sender: int, slot: int, terms: Terms) -> None:
        assert terms.policy is not None, "the sender knows its policy"
        hello = {
            "env": terms.env.to_wire(),
            "policy": terms.policy.to_wire(),
            "unroll_length": terms.unroll_length,
            "num_envs": terms.num_envs,
        }
        self.outbox = Outbox(Stream(sender, slot, hello, "learner"))
        self._record = rollout_record(terms.env, terms.policy, terms.unroll_length)
        self._num_envs = terms.num_envs
        self._spare: deque[NDArray[np.void]] = deque()

    def fill(self, now: float) -> None:
        """Put in what the window admits."""
        while self.outbox.room:
            self.outbox.push(self._spare.popleft() if self._spare else self._rollout(), [], now)

    def recycle(self, rollouts: list[NDArray[np.void]]) -> None:
        """Take back what the learner has used."""
        self._spare.extend(rollouts)

    def _rollout(self) -> NDArray[np.void]:
        rows = np.zeros(self._num_envs, self._record.dtype)
        rows["obs"] = 1  # memory that was never written would all be one page
        return rows


class Sender:
    """All groups and their port.

    Args:
      context: of this process.
      endpoint: of the learner.
      terms: of the rollouts.
      groups: how many env groups there are.
    """

    def __init__(self, context: Context, endpoint: str, terms: Terms, groups: int) -> None:
        self._port = ClientPort(context, Plane.ROLLOUTS, endpoint, random_id())
        self._poller = Poller([self._port])
        self.acknowledged = 0  #: rollouts so far
        self._groups = [Group(self._port.sender, slot, terms) for slot in range(groups)]

    def turn(self) -> None:
        """Send what the windows admit, wait, and take what came."""
        now = time.monotonic()
        for group in self._groups:
            group.fill(now)
            self._send(group.outbox, now)
        self._poller.wait(MAX_WAIT_S)
        while message := self._port.receive():
            group = self._groups[message.header.slot]
            free = group.outbox.accept(message.header, now)[1]
            group.recycle(free)
            self.acknowledged += len(free)

    def close(self) -> None:
        """Close the sockets."""
        self._port.close()

    def _send(self, outbox: Outbox, now: float) -> None:
        while work := outbox.due(now):
            header, frames = work
            if not self._port.send(header, *frames, copy=False):
                return
            outbox.mark_sent()
            if header.kind is Kind.HELLO:
                return


def send(pipe: Connection, endpoint: str, terms: Terms, groups: int) -> None:
    """Send until the pipe ends; say so once the learner has used a first rollout."""
    context, leash, under_way = Context(), Leash(pipe), False
    sender = Sender(context, endpoint, terms, groups)
    try:
        while not leash.gone(time.monotonic()):
            sender.turn()
            if sender.acknowledged and not under_way:
                under_way = True
                say(pipe, "under way")
    finally:
        sender.close()
        context.term()
