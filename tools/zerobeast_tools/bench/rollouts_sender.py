"""The actor of `beast bench rollouts`: the outboxes of its env groups, with rollouts that are always ready."""

import time
from collections import deque
from multiprocessing.connection import Connection
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.transport import ClientPort, Context, Poller, random_id
from zerobeast.common.wire import rollout_record
from zerobeast.common.wire.messages import Kind, Plane
from zerobeast.common.wire.stream import Stream
from zerobeast.services.actor.outbox import Outbox
from zerobeast.services.learner.admission import Terms

MAX_WAIT_S = 0.1


class Sender:
    """The outboxes of several env groups, refilled with rollouts [N] as soon as they have room.

    Args:
      endpoint: of the learner.
      terms: of the rollouts.
      groups: how many env groups there are.
    """

    def __init__(self, endpoint: str, terms: Terms, groups: int) -> None:
        assert terms.policy is not None, "the sender has its policy"
        assert terms.unroll_length is not None, "and T"
        hello = {
            "env": terms.env.to_wire(),
            "policy": terms.policy.to_wire(),
            "unroll_length": terms.unroll_length,
            "num_envs": terms.num_envs,
        }
        self._port = ClientPort(Context(), Plane.ROLLOUTS, endpoint, random_id())
        self._poller = Poller([self._port])
        self._outboxes = [Outbox(Stream(self._port.sender, slot, dict(hello), "learner")) for slot in range(groups)]
        self._record = rollout_record(terms.env, terms.policy, terms.unroll_length)
        self._num_envs = terms.num_envs
        self._spare: deque[NDArray[np.void]] = deque()
        self.acknowledged = 0  #: rollouts so far

    def turn(self) -> None:
        """Send what the windows admit, wait, and receive acknowledgements."""
        now = time.monotonic()
        for outbox in self._outboxes:
            while outbox.room:
                outbox.push(self._spare.popleft() if self._spare else self._rollout(), [], now)
            self._send(outbox, now)
        self._poller.wait(MAX_WAIT_S)
        while message := self._port.receive():
            free = self._outboxes[message.header.slot].accept(message.header, now)[1]
            self._spare += free
            self.acknowledged += len(free)

    def _send(self, outbox: Outbox, now: float) -> None:
        while work := outbox.due(now):
            header, frames = work
            if not self._port.send(header, *frames, copy=False):
                return
            outbox.mark_sent()
            if header.kind is Kind.HELLO:
                return

    def _rollout(self) -> NDArray[np.void]:
        rows = np.zeros(self._num_envs, self._record.dtype)
        rows["obs"] = 1  # memory that was never written would all map to one page
        return rows


def send(pipe: Connection, endpoint: str, terms: Terms, groups: int) -> NoReturn:
    """Send for ever; report on the pipe once the learner has used the first rollout."""
    sender = Sender(endpoint, terms, groups)
    while not sender.acknowledged:
        sender.turn()
    pipe.send("under way")
    while True:
        sender.turn()
