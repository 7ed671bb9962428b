"""The learner's intake and the outboxes of actors, both real, with lists between them, and a training run on them."""

import random
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.build.learners import ENV, POLICY, T, rollout_rows
from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.health.hops import Hops
from zerobeast.common.service.computation import Computation
from zerobeast.common.wire.messages import Header, Kind, Reason
from zerobeast.common.wire.stream import Stream
from zerobeast.services.actor.outbox import Outbox
from zerobeast.services.learner.acting import VersionPublisher
from zerobeast.services.learner.admission import Terms
from zerobeast.services.learner.coordination import Act, SoloCoordinator
from zerobeast.services.learner.intake import Intake
from zerobeast.services.learner.ledger import SavedLedger
from zerobeast.services.learner.meters import Meters
from zerobeast.services.learner.queue import RolloutQueue
from zerobeast.services.learner.training_run import TrainingRun
from zerobeast.services.learner.update import Trainer


class ListMessage:
    """Replaces `zerobeast.common.transport.Incoming` for an intake."""

    def __init__(self, header: Header, rows: Any) -> None:
        self.header, self.rows = header, rows

    def into(self, buffer: np.ndarray) -> bool:
        source: np.ndarray = self.rows.view(np.uint8)
        if buffer.nbytes == source.nbytes:
            buffer[...] = source.reshape(buffer.shape)
        return buffer.nbytes == source.nbytes


class ListPort:
    """A port with lists instead of sockets."""

    def __init__(self) -> None:
        self.inbox: deque[ListMessage] = deque()
        self.outbox: deque[Header] = deque()
        self.refused: Counter[str] = Counter()
        self.dropped = 0

    def receive(self) -> ListMessage | None:
        return self.inbox.popleft() if self.inbox else None

    def send(self, header: Header) -> None:
        self.outbox.append(header)

    def hears(self, _sender: int) -> bool:
        return True

    def reject(self, request: Header, error: RemoteProtocolError, *, epoch: int = 0) -> None:
        """Reject a request; here only lost messages are expected to cause this."""
        assert error.reason == "session"
        body = (str(Reason.UNKNOWN_SESSION), str(error))
        self.send(Header(Kind.ERROR, request.sender, request.slot, epoch, request.seq, body))

    def refuse(self, error: RemoteProtocolError) -> None:
        self.refused[error.reason] += 1

    def changes(self) -> dict[int, bool]:
        return {}


class ListedRun:
    """Streams with the given number of rows by sender, and one learner after another. Time is a number."""

    def __init__(
        self, rows: dict[int, int], batch: int, window: int, seed: int = 0, *, ahead: int = 0, lock_step: bool = False
    ) -> None:
        self.ahead, self.lock_step = ahead, lock_step
        self.now, self.random = 0.0, random.Random(seed)
        self.rows, self.batch, self.window = rows, batch, window
        terms = {"env": ENV.to_wire(), "policy": POLICY.to_wire(), "unroll_length": T}
        self.outboxes = {
            sender: Outbox(Stream(sender, 0, {**terms, "num_envs": n}, "learner")) for sender, n in rows.items()
        }

    def start(self, epoch: int, saved: SavedLedger) -> None:
        """Start a learner that continues from this ledger."""
        self.port = ListPort()
        terms = Terms(ENV, POLICY, T, max(*self.rows.values(), self.batch))
        queue = RolloutQueue(partial(np.empty, dtype=rollout_rows(1).dtype), self.batch)
        port: Any = self.port
        self.intake = Intake(port, epoch, self.window, terms, queue, saved, ahead=self.ahead, lock_step=self.lock_step)

    def exchange(self, loss: float = 0.0) -> None:
        """Deliver everything that is due, except what is lost."""
        for outbox in self.outboxes.values():
            while work := outbox.due(self.now):
                header, frames = work
                outbox.mark_sent()
                if self.random.random() >= loss:
                    self.port.inbox.append(ListMessage(header, frames[0].copy() if frames else b""))
                if header.kind is Kind.HELLO:
                    break
        self.intake.receive(self.now)
        while self.port.outbox:
            header = self.port.outbox.popleft()
            if self.random.random() >= loss:
                self.outboxes[header.sender].accept(header, self.now)


def training_run(trainer: Trainer, intake: Intake, clock: Callable[[], float]) -> TrainingRun:
    """A training run that publishes its weights nowhere."""
    nowhere: Any = SimpleNamespace(publish=lambda _header, _snapshot: None, tell=lambda _news: None)
    hops, computing = Hops("learner", 0.0), Computation(clock)
    service: Any = SimpleNamespace(clock=clock, hops=hops, computing=computing, started_at=0.0, page={})
    publishing = VersionPublisher(nowhere, None, intake.epoch, intake.acting)
    return TrainingRun(trainer, intake, service, publishing, Meters(["Test-v0"]))


def learn(training: TrainingRun) -> bool:
    """Take the step or the batch that can be taken now; False: there is neither."""
    agreed = SoloCoordinator().agree(training.vote(SoloCoordinator()), 0.0)
    if agreed is None or agreed.act is Act.END:
        return False
    training.act(agreed, 0.0)
    return True
