"""The actor's shell: three ports around its env groups. One loop, one poller, no threads, no torch."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from common.config.tree import RunConfig
from common.errors import PeerLost, RemoteProtocolError
from common.messages import Header, Kind, Plane
from common.service import MAX_POLL_S, Service
from common.session import Stream
from common.transport import ClientPort, Poller, make_context, random_id
from services.actor.group import EnvGroup, Wait

log = logging.getLogger(__name__)

REOPEN_AFTER_S = 10.0
LOOKUP_PERIOD_S = 1.0  #: between two attempts to resolve the names of servers
RATE_PERIOD_S = 5.0
DRAIN_S = 1.0
LINGER_MS = 200  #: for BYE to leave


class Instance(Protocol):
    """What tells this process from its siblings."""

    index: int | None
    supervisor_pid: int


class Actor(Service):
    """Drives env groups, asks the broker for actions, pushes rollouts to the learner.

    Args:
      config: of the run.
      instance: which actor this is.
    """

    role = "actor"

    def __init__(self, config: RunConfig, instance: Instance) -> None:
        super().__init__(supervisor_pid=instance.supervisor_pid)
        self.config = config
        self.sender = random_id()
        now = self.clock()
        count, size = config.actor.env_groups, config.actor.envs_per_group
        place = self.sender if instance.index is None else instance.index
        self.groups = [
            EnvGroup(config, self.sender, slot, _seed(config.seed, place * count + slot, size), now)
            for slot in range(count)
        ]
        self._endpoints = {
            Plane.STEPS: config.envserver.endpoint,
            Plane.INFERENCE: config.broker.endpoint,
            Plane.ROLLOUTS: config.learner.endpoint,
        }
        self._ports: dict[Plane, ClientPort] = {}
        self._lookup_at = now
        self._reopened = dict.fromkeys(self._endpoints, now)
        self._reconnects = 0
        self._past = (now, 0, dict.fromkeys(Wait, 0.0))
        self._rates: dict[str, float] = {}

    def open(self) -> None:
        """Connect to the three servers; names that do not resolve yet are tried again."""
        self._context = make_context()

    def poll(self, timeout_s: float) -> None:
        """Wait for replies, then act on all that are there."""
        now = self.clock()
        if len(self._ports) < len(self._endpoints):
            self._connect(now)
            timeout_s = MAX_POLL_S  # what is due there cannot leave, and must not make the loop spin
        self._send_due(now)
        self._poller.wait(timeout_s)
        now = self.clock()
        for plane, port in self._ports.items():
            while message := port.receive():
                self._dispatch(plane, port, message, now)
        self._send_due(now)

    def tick(self, now: float) -> None:
        """Look after servers that stay silent."""
        limit = self.config.actor.connect_timeout_s
        for plane, streams in self._streams().items():
            for stream in streams:
                silence = min(stream.silent_s(now), now - self.started_at)
                if silence > limit:
                    raise PeerLost(f"no answer from the {stream.server} for {limit:.0f} s")
                if min(silence, now - self._reopened[plane]) > REOPEN_AFTER_S and plane in self._ports:
                    self._reopen(plane, now)

    def deadline(self) -> float:
        """When something has to be repeated."""
        return min(group.deadline() for group in self.groups)

    def drain(self) -> None:
        """Give rollouts that are complete a moment to leave, then say goodbye."""
        until, port = self.clock() + DRAIN_S, self._ports.get(Plane.ROLLOUTS)
        while port and self.clock() < until and any(group.outbox.in_transit for group in self.groups):
            Poller([port]).wait(0.05)
            for message in iter(port.receive, None):
                self._dispatch(Plane.ROLLOUTS, port, message, self.clock())
        for plane, streams in self._streams().items():
            for stream in streams:
                if stream.open and plane in self._ports:
                    self._ports[plane].send(Header(Kind.BYE, self.sender, stream.slot, stream.epoch))

    def close(self) -> None:
        """Close the sockets."""
        for port in self._ports.values():
            port.close()
        if hasattr(self, "_context"):
            self._context.term()

    def report(self) -> dict[str, Any]:
        """Numbers for the health page; rates are of the last few seconds."""
        self._measure(self.clock())
        return {
            "groups": len(self.groups),
            "envs": sum(group.num_envs for group in self.groups),
            "agent_steps": sum(group.agent_steps for group in self.groups),
            "rollouts_sent": sum(group.outbox.sent for group in self.groups),
            "unacked": sum(group.outbox.unacked for group in self.groups),
            "restarts": sum(group.restarts for group in self.groups),
            "reconnects": self._reconnects,
            "refused": sum(sum(port.refused.values()) for port in self._ports.values()),
            **self._rates,
        }

    def _connect(self, now: float) -> None:
        if now < self._lookup_at:
            return
        for plane, endpoint in self._endpoints.items():
            if plane in self._ports:
                continue
            try:
                self._ports[plane] = ClientPort(self._context, plane, endpoint, self.sender, linger_ms=LINGER_MS)
            except PeerLost as error:
                if now - self.started_at > self.config.actor.connect_timeout_s:
                    raise
                log.info("%s; trying again", error)
        self._lookup_at = self.clock() + LOOKUP_PERIOD_S  # a lookup may take seconds itself
        self._poller = Poller(self._ports.values())

    def _send_due(self, now: float) -> None:
        for plane, port in self._ports.items():
            for group in self.groups:
                while work := group.due(plane, now):
                    header, frames = work
                    hello = header.kind is Kind.HELLO
                    if not port.send(header, *frames, copy=plane is not Plane.ROLLOUTS):
                        break
                    group.mark_sent(plane, now)
                    if hello or plane is not Plane.ROLLOUTS:
                        break

    def _dispatch(self, plane: Plane, port: ClientPort, message: Any, now: float) -> None:
        slot = message.header.slot
        if slot >= len(self.groups):
            port.refuse(RemoteProtocolError(f"slot {slot} of {len(self.groups)}", "slot"))
            return
        try:
            self.groups[slot].take(plane, message, now)
        except RemoteProtocolError as error:
            port.refuse(error)

    def _streams(self) -> dict[Plane, list[Stream]]:
        return {
            Plane.STEPS: [group.steps for group in self.groups],
            Plane.INFERENCE: [group.inference for group in self.groups if group.env],
            Plane.ROLLOUTS: [group.outbox.stream for group in self.groups if group.policy],
        }

    def _reopen(self, plane: Plane, now: float) -> None:
        self._reopened[plane] = now
        self._reconnects += 1
        log.warning("no answer from %s for %.0f s: connecting anew", self._endpoints[plane], REOPEN_AFTER_S)
        try:
            self._ports[plane].reopen()
        except PeerLost as error:
            log.warning("%s; keeping its last address", error)
        self._poller = Poller(self._ports.values())

    def _measure(self, now: float) -> None:
        for group in self.groups:
            group.settle(now)
        then, steps_then, waited_then = self._past
        if now - then < min(RATE_PERIOD_S, now - self.started_at):
            return
        span = max(now - then, 1e-9)
        steps = sum(group.agent_steps for group in self.groups)
        waited = {wait: sum(group.waited[wait] for group in self.groups) for wait in Wait}
        self._past = (now, steps, waited)
        self._rates = {"agent_steps_per_s": round((steps - steps_then) / span, 1)}
        for wait in Wait:
            share = (waited[wait] - waited_then[wait]) / (span * len(self.groups))
            self._rates[f"waiting_{wait}_fraction"] = round(share, 3)


def _seed(run_seed: int, group: int, envs_per_group: int) -> int:
    """Environment seeds of different groups never overlap, nor do those of nearby run seeds.

    Where a random id stands for the index of an actor that nobody counted, they differ in every run and are as good
    as certain not to overlap.
    """
    return (run_seed * 1_000_003 + group * envs_per_group) % 2**31
