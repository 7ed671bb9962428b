"""The learner's sockets, and the serving end of the rollout plane until the first actor that fits begins a run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from zerobeast.common.errors import ConfigError, RemoteProtocolError, StoreError
from zerobeast.common.transport import Context, Incoming, Poller, ServerPort, WeightsPublisher
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.services.learner.admission import Terms
from zerobeast.services.learner.ledger import Ledger

log = logging.getLogger(__name__)

MESSAGES_PER_TURN = 256  #: a flood of small messages must not keep the loop from updates


class RolloutPlane:
    """Takes messages and answers those that are out of place. It has no sessions.

    Args:
      port: to receive from; the caller closes it.
      epoch: random id of this start.
      begin: sets up the run for an actor, and returns the plane that receives from then on. Raises ConfigError if its
        environment cannot be learned.
    """

    def __init__(self, port: ServerPort, epoch: int, begin: Callable[[Terms], RolloutPlane] | None = None) -> None:
        self.port, self.epoch = port, epoch
        self.begin = begin  #: None while no HELLO can begin a run: there is one, and rollouts of it were accepted
        self._replaced = False  #: another plane receives from now on

    @property
    def peers(self) -> int:
        """Actors that are connected and have a session."""
        return 0

    @property
    def reads(self) -> bool:
        """Whether another message may be received now."""
        return not self._replaced

    def page(self) -> dict[str, Any]:
        """For the health page; a stream is [sender, slot, rollouts of a message, received, consumed, begun]."""
        return {
            "peers": self.peers,
            "refused": sum(self.port.refused.values()),
            "refused_by_reason": dict(self.port.refused),
            "dropped": self.port.dropped,
            "acting": 0,
            "rollouts_by_fate": asdict(Ledger()),
            "queue_rows": 0,
            "queue_capacity": 0,
            "streams_held": 0,
            "streams": [],
            "epoch": self.epoch,
        }

    def receive(self, now: float) -> None:
        """Take the messages that arrived, up to a HELLO that begins a run."""
        self._notice(now)
        for _ in range(MESSAGES_PER_TURN):
            message = self.port.receive() if self.reads else None
            if message is None:
                break
            self._handle(message, now)

    def admit(self, header: Header, now: float) -> None:
        """Answer a HELLO: begin the run, which admits its actor.

        Raises:
          RemoteProtocolError: its terms are impossible, not those of the run, or there are too many actors.
          StoreError: the learner's disk cannot hold the run.
        """
        assert self.begin is not None, "otherwise there is a run"
        try:
            plane = self.begin(Terms.from_wire(header.body[0]))
        except StoreError:
            raise
        except ConfigError as error:
            raise RemoteProtocolError(str(error), "terms") from error
        self._replaced = True
        plane.admit(header, now)

    def rollout(self, message: Incoming, now: float) -> None:  # noqa: ARG002 - for those that have sessions
        """Take a ROLLOUT."""
        self.unknown(message.header, "a rollout of an unknown session: send HELLO first")

    def leave(self, sender: int) -> None:
        """Note that an actor has gone."""

    def farewell(self) -> None:
        """Send BYE to every actor that has a session: the learner ends."""

    def unknown(self, header: Header, sentence: str) -> None:
        """Ask the sender of a message that cannot be taken to send HELLO again."""
        self.port.reject(header, RemoteProtocolError(sentence, "session"), epoch=self.epoch)

    def _notice(self, now: float) -> None:  # noqa: ARG002 - for those that have sessions
        """Note actors that came or went; new ones are sent the epoch of this start of the learner."""
        self.port.changes()

    def _handle(self, message: Incoming, now: float) -> None:
        header = message.header
        try:
            if header.kind is Kind.HELLO:
                self.admit(header, now)
            elif header.kind is Kind.ROLLOUT:
                self.rollout(message, now)
            elif header.kind is Kind.BYE:
                self.leave(header.sender)
            else:
                raise RemoteProtocolError(f"{header.kind.name} does not belong on the rollout plane", "kind")
        except RemoteProtocolError as error:
            if header.kind is Kind.HELLO:
                log.warning("refused an actor: %s", error)
                self.port.reject(header, error, epoch=self.epoch)
            else:
                self.port.refuse(error)


class LearnerSockets:
    """The sockets of a learner, for rollouts and for weights, and the plane that receives now.

    Args:
      context: of the sockets.
      endpoint: to bind.
      epoch: random id of this start.
      begin: as for `RolloutPlane`.
      resources: close the sockets.

    Raises:
      ConfigError: the endpoint cannot be bound.
    """

    def __init__(
        self, context: Context, endpoint: str, epoch: int, begin: Callable[[Terms], RolloutPlane], resources: ExitStack
    ) -> None:
        self.port = ServerPort(context, Plane.ROLLOUTS, endpoint, epoch=epoch)
        resources.callback(self.port.close)
        self.publisher = WeightsPublisher(context, endpoint)
        resources.callback(self.publisher.close)
        self.poller = Poller([self.port, self.publisher])
        self.plane = RolloutPlane(self.port, epoch, begin)

    def turn(self, now: float) -> None:
        """Answer actors and subscribers, and take what has arrived; never waits."""
        self.publisher.welcome()
        self.plane.receive(now)
