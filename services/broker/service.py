"""The broker: collects requests of all actors into batches, infers, answers.

One turn of the loop: receive what arrived (requests go straight into the batch), take newer weights, hand the batch to
the device when the batcher closes it, answer what the device finished. `sessions` decides which requests are admitted,
`batcher` when to compute; `inference` computes, `weights_inbox` checks versions; this module connects them to sockets.
"""

import logging
from typing import Any, NamedTuple

import torch

from zerobeast.common.config.process import Instance
from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.health.sliding_window import SlidingWindow
from zerobeast.common.service.base import DRAIN_LIMIT_S, Service
from zerobeast.common.settings import RunConfig
from zerobeast.common.transport import Incoming, Poller, ServerPort, index_of, random_id
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.common.wire.seeds import continue_seed, hash_seed
from zerobeast.common.wire.session import Arrival, Session
from zerobeast.rl.acting.inference import Inference
from zerobeast.rl.acting.sync import Sync
from zerobeast.rl.acting.weights_inbox import LocalWeights, WeightsInbox, shared_place
from zerobeast.rl.nets import pick_device, pick_dtype
from zerobeast.services.broker.batcher import Batcher
from zerobeast.services.broker.sessions import Client, Sessions

log = logging.getLogger(__name__)

RATE_SPAN_S = 3.0
MAX_MESSAGES = 1024  #: taken in one turn, so that a flood cannot keep a batch from the device


class Request(NamedTuple):
    session: Session[Client]
    start: int  #: its first row in the batch
    with_core: bool
    at: float  #: when it arrived
    opponents: list[int] | None  #: for each environment, agent steps of the version that acts for the other side


class RunningBatch(NamedTuple):
    """The batch that the device computes."""

    policy: Inference
    requests: list[Request]
    rows: int
    version: int  #: of the weights it is computed with
    since: float


class Broker(Service):
    """Central inference for any number of actors."""

    role = "broker"
    work = ("rows",)

    def __init__(self, config: RunConfig, instance: Instance) -> None:
        super().__init__()
        self.config = config
        self.epoch = random_id()
        index = self.epoch if instance.index is None else instance.index
        self._seed = hash_seed(config.seed, index) if index else config.seed  # as no other broker draws, of any run
        self.batcher: Batcher[Request] = Batcher(config.broker.max_batch_rows, config.broker.max_batch_delay_s)
        self._rows = self._requests = self._batches = 0  #: answered so far
        self._window = SlidingWindow(RATE_SPAN_S)
        self._inbox: WeightsInbox | None = None
        self.running: RunningBatch | None = None
        self.held: Incoming | None = None  # a request that waits in the socket for the next batch

    def open(self) -> None:
        """Bind the endpoint.

        Raises:
          ConfigError: it is taken, the device is missing, or a deterministic run is not on one machine.
        """
        settings = self.config.broker
        shared_place(self.config)
        device = pick_device(settings.device, "broker.device")
        dtype = pick_dtype(settings.precision, device)
        torch.set_num_threads(settings.threads or 1)
        self._sessions = Sessions(self.config, self.epoch, device=device, dtype=dtype, seed=self._seed)
        self._context = self.open_context(self.config.security)
        self.port = ServerPort(self._context, Plane.INFERENCE, settings.endpoint, epoch=self.epoch)
        self.resources.callback(self.port.close)
        self.resources.callback(self._unsubscribe)
        self.poller = Poller([self.port])
        log.info("infers on %s in %s", device, dtype)

    def take(self) -> None:
        self._collect()
        for sender in self.port.departures():
            self._sessions.leave(sender)
        self._renew_weights(self.clock())

    def tick(self, now: float) -> None:
        """Answer a finished batch; start the next if it is due."""
        for session in self._sessions.table.find_unused(now, self.awake_since):
            self._sessions.end(session)
        self._finish()
        if self.running is None:
            self._sessions.renew_opponents(now)
        if self.running is None and self._armed and self.batcher.closes(now, self._sessions.table.senders):
            self._start(now)
            self._finish()

    def deadline(self) -> float:
        """When the batch has waited long enough; at once while CUDA computes, which cannot wake the poller."""
        if not self._armed:
            return float("inf")
        return 0.0 if self.running or self.held else self.batcher.deadline()

    @property
    def _armed(self) -> bool:
        """Whether there are weights. Until then requests wait: the learner starts only once actors know the policy."""
        return self._inbox is not None and self._inbox.version >= 0

    def idle(self) -> bool:
        """Whether no request waits. Those that wait for the first weights count: no client is served meanwhile."""
        return self.running is None and self.held is None and not len(self.batcher)

    def drain(self) -> None:
        """Answer the requests that have arrived, then send BYE to every client."""
        limit = self.clock() + DRAIN_LIMIT_S
        while self._armed and self.clock() < limit:
            self._collect()
            if self.running is None and len(self.batcher):
                self._start(self.clock())
            self._finish()
            if self.running is None and not len(self.batcher) and self.held is None:
                break
        for session in self._sessions.table:
            self.port.send(Header(Kind.BYE, session.sender, session.slot, self.epoch, session.seq))

    def report(self) -> dict[str, Any]:
        """Numbers for the health page; rates are of the last few seconds."""
        if self.state == "starting":
            return {}
        rows, requests, batches = self._window.per_s(self.clock(), self._rows, self._requests, self._batches)
        refused = self.port.refused + self._inbox.refused if self._inbox else self.port.refused
        return {
            "rows": self._rows,
            "rows_per_s": round(rows, 1),
            "requests_per_s": round(requests, 1),
            "batch_rows_mean": round(rows / batches, 1) if batches else 0.0,
            "max_batch_rows": self.batcher.max_rows,
            "policy_version": self._inbox.version if self._inbox else -1,
            "clients": len(self._sessions.table),
            "refused": sum(refused.values()),
            "refused_by_reason": dict(refused),
            "weights_from_memory": self._inbox is not None and self._inbox.is_local,
            "weights_refused": self._inbox.complaint if self._inbox else "",
            "dropped": self.port.dropped,
            **(self._inbox.sync.page() if self._inbox else {}),
        }

    def _collect(self) -> None:
        """Take messages until none is left or a request has to wait for the next batch."""
        for _ in range(MAX_MESSAGES):
            incoming = self.held or self.port.receive()
            self.held = None
            if incoming is None:
                return
            kind = incoming.header.kind
            if kind is Kind.INFER:
                if not self._infer(incoming):
                    self.held = incoming
                    return
            elif kind is Kind.HELLO:
                self._hello(incoming.header)
            elif kind is Kind.BYE:
                self._sessions.bye(incoming.header)
            else:
                self.port.refuse(RemoteProtocolError(f"a broker does not take {kind.name}", "kind"))

    def _hello(self, header: Header) -> None:
        if self.state == "draining":
            return
        try:
            before = self._sessions.policy
            learned = self._inbox is not None and self._inbox.version > 0  # version 0 follows from any HELLO
            policy, rows = self._sessions.agree(header.body[0], self.clock(), served=self._armed, settled=learned)
        except RemoteProtocolError as error:
            self.port.reject(header, error, epoch=self.epoch)
            return
        if policy is not before:
            self.batcher.take()
            self.running = None
            self._unsubscribe()
        if not self.port.hears(header.sender):
            return  # its subscription has not arrived yet, and HELLO will be repeated
        if self._inbox is None:
            place = shared_place(self.config)
            local = LocalWeights(place, policy.net, only=self.config.deterministic) if place else None
            endpoint = self.config.learner.endpoint
            sync = Sync(self.config.sync.parsed, self.epoch, self.config.learner.publish_every)
            layout = policy.layout_id, policy.weights_bytes
            self._inbox = WeightsInbox(self._context, endpoint, *layout, local=local, sync=sync)
        session = self._sessions.admit(header, rows, self.clock())
        if session is None:
            busy = RemoteProtocolError(f"no room for {rows} more environments", "busy")
            self.port.reject(header, busy, epoch=self.epoch)
        elif not session.state.pending:  # otherwise WELCOME's seq would be out of date: the client repeats its HELLO
            terms = {"policy": policy.algorithm.policy.to_wire()}
            self.port.send(Header(Kind.WELCOME, header.sender, header.slot, self.epoch, session.seq, (terms,)))

    def _unsubscribe(self) -> None:
        if self._inbox is not None:
            self._inbox.close()
            self._inbox, self.poller = None, Poller([self.port])

    def _infer(self, incoming: Incoming) -> bool:
        """Put a request into the batch. False if it has to wait for the next one."""
        header = incoming.header
        session = self._sessions.table.of(header)
        if session is None:
            unknown = RemoteProtocolError("a request of an unknown session: send HELLO again", "session")
            self.port.reject(header, unknown, epoch=self.epoch)
            return True
        if header.seq <= session.seq:
            self._repeat_answer(session, header)
            return True
        if session.state.pending:
            self.port.refuse(RemoteProtocolError("a request before the last one was answered", "overlap"))
            return True
        if not self.batcher.fits(session.state.rows):
            if not self._armed:  # a request in the socket is not read, and might wait there for long
                self.port.here(header, self.epoch)
            return not self._armed
        self._receive(incoming, session)
        return True

    def _repeat_answer(self, session: Session[Client], header: Header) -> None:
        """Repeat an answer that was given, or send HERE if the request is still being worked on."""
        arrival = session.arrival(header.seq)
        if arrival is Arrival.REPEATED and session.reply is not None:
            self.port.send(session.reply[0], *session.reply[1])
        elif arrival is Arrival.PENDING:
            self.port.here(header, self.epoch)

    def _receive(self, incoming: Incoming, session: Session[Client]) -> None:
        """Receive a new request's rows into the batch. A malformed one leaves no trace in it."""
        header, client = incoming.header, session.state
        assert self._sessions.policy is not None, "a session exists, so its policy does"
        start = self.batcher.rows
        rows = self._sessions.policy.batch.rows[start : start + client.rows]
        if not incoming.into(rows):
            sentence = f"INFER carries {client.rows} rows of {rows.shape[1]} bytes"
            self.port.refuse(RemoteProtocolError(sentence, "payload"))
            return
        session.arrival(header.seq)
        versions = self._sessions.enter(session, start)
        now = session.asked_at = self.clock()
        self.batcher.add(Request(session, start, header.body[0], now, versions), client.rows, header.sender, now)

    def _start(self, now: float) -> None:
        policy, inbox = self._sessions.policy, self._inbox
        assert policy is not None, "there are requests, so there is a policy"
        assert inbox is not None, "there are requests, so there are weights"
        rows, requests = self.batcher.rows, self.batcher.take()
        for request in requests:
            self.hops.add("batch_wait", now - request.at)
        if self.config.deterministic:
            session = requests[0].session  # the seed is the same whichever broker it goes to, and whenever
            group = index_of(session.sender) * self.config.actor.env_groups + session.slot  # counted over all actors
            policy.reseed(hash_seed(self.config.seed, group, session.seq, inbox.version))
        policy.submit(rows, with_cores=any(request.with_core for request in requests))
        self.running = RunningBatch(policy, requests, rows, inbox.version, now)

    def _finish(self) -> None:
        """Answer the running batch if it is done. Replies are copies: they outlive the memory they come from."""
        running = self.running
        if running is None or not running.policy.done():
            return
        self.running = None
        self._rows, self._requests = self._rows + running.rows, self._requests + len(running.requests)
        self._batches += 1
        self.hops.add("forward", self.clock() - running.since)
        acts, cores = running.policy.acts, running.policy.cores
        for session, start, with_core, _, opponents in running.requests:
            stop = start + session.state.rows
            frames: tuple[bytes, ...] = (acts[start:stop].tobytes(),)
            if with_core and cores.size:
                frames += (cores[start:stop].tobytes(),)
            body = running.version, opponents
            header = Header(Kind.ACT, session.sender, session.slot, self.epoch, session.seq, body)
            session.reply = (header, frames)
            if self._sessions.finish_request(session):
                self.port.send(header, *frames)

    def _renew_weights(self, now: float) -> None:
        if self._inbox is None or self._sessions.policy is None:
            return
        if self._inbox.connect(now):
            self.poller = Poller([self.port, self._inbox])
        before, weights = self._inbox.version, self._inbox.newest(now)
        if weights is not None:
            self._sessions.policy.load(weights, as_kept=self._inbox.is_local)
            if before < 0:  # a new run draws as configured, a resumed one draws other numbers
                self._sessions.policy.reseed(continue_seed(self._seed, self._inbox.version) % 2**63)
        self._sessions.policy.advance(self._inbox.sync.agent_steps)
