"""The actor's shell: its env groups and the servers that they talk to. One loop, one poller, no torch."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from zerobeast.common.config.process import Instance
from zerobeast.common.config.tree import RunConfig
from zerobeast.common.errors import ConfigError, PeerLost, Refusal
from zerobeast.common.runtime.endpoints import Endpoint
from zerobeast.common.runtime.sliding_window import SlidingWindow
from zerobeast.common.service.base import Service
from zerobeast.common.transport import Poller, random_id
from zerobeast.common.transport.lookup import Lookup, Resolve
from zerobeast.common.wire.messages import Kind, Plane
from zerobeast.services.actor.assignment import assigned
from zerobeast.services.actor.directory import Directory
from zerobeast.services.actor.group import EnvGroup
from zerobeast.services.actor.link import Link
from zerobeast.services.actor.servers import Servers
from zerobeast.services.actor.timeouts import TIMEOUTS, Timeouts
from zerobeast.services.actor.waits import Wait, Waits

log = logging.getLogger(__name__)

RATE_SPAN_S = 5.0
DRAIN_S = 1.0


class Actor(Service):
    """Drives env groups, asks brokers for actions, pushes rollouts to the learner.

    Args:
      config: of the run.
      instance: which actor this is.
      timeouts: how long it waits for what.
      clock: monotonic seconds.
      resolve: finds what the name of a server stands for.
    """

    role = "actor"

    def __init__(
        self,
        config: RunConfig,
        instance: Instance,
        *,
        timeouts: Timeouts = TIMEOUTS,
        clock: Callable[[], float] = time.monotonic,
        resolve: Resolve = Endpoint.addresses,
    ) -> None:
        super().__init__(clock=clock)
        self.config, self._timeouts, self._index = config, timeouts, instance.index
        self.sender = random_id(instance.index)
        now, count = self.clock(), config.actor.env_groups
        first = count * (self.sender if instance.index is None else instance.index)  # among the groups of all actors

        def group(slot: int) -> EnvGroup:
            own, seed = assigned(config, first + slot, instance.start)
            return EnvGroup(own, self.sender, slot, seed, Waits(now, self.hops), timeouts)

        def servers(plane: Plane, endpoint: str) -> Servers:
            directory = Directory(count, first, spread=plane is not Plane.ROLLOUTS)
            return Servers(plane, Lookup(endpoint, resolve), self.sender, directory, timeouts)

        self.groups = [group(slot) for slot in range(count)]
        self._servers = [
            servers(Plane.STEPS, config.envserver.endpoint),
            servers(Plane.INFERENCE, config.broker.endpoint),
            servers(Plane.ROLLOUTS, config.learner.endpoint),
        ]
        self._links = {each: [Link(group, each, timeouts, now) for group in self.groups] for each in self._servers}
        self._reconnects = 0
        self._window = SlidingWindow(RATE_SPAN_S)

    def open(self) -> None:
        """Connect; names that do not resolve yet are looked up again.

        Raises:
          ConfigError: the run is deterministic, and this actor is not counted.
        """
        if self.config.deterministic and self._index is None:
            raise ConfigError("index: expected a number of this actor, by which a deterministic run orders its actors")
        self._context = self.open_context(self.config.security)
        for servers in self._servers:
            self.resources.callback(servers.close)
        self._look_for_servers(self.clock())

    def take(self) -> None:
        now = self.clock()
        for servers in self._servers:
            self._receive(servers, now)
        self._send_due(now)

    def tick(self, now: float) -> None:
        """Look after servers that come, leave or stay silent."""
        self._look_for_servers(now)
        for link in self._greeting:
            self._watch(link, now)

    def deadline(self) -> float:
        """When something has to be sent."""
        if not all(servers.ports for servers in self._servers):
            return math.inf  # what is due there cannot leave, and must not make the loop spin
        return min(group.deadline() for group in self.groups)

    def drain(self) -> None:
        """Give rollouts that are complete a moment to leave, then say goodbye."""
        until, learner = self.clock() + DRAIN_S, self._servers[-1]
        while self.clock() < until and any(group.rollouts.outbox.in_transit for group in self.groups):
            Poller(learner.ports.values()).wait(0.05)
            self._receive(learner, self.clock())
        for link in self._greeting:
            link.farewell()

    def report(self) -> dict[str, Any]:
        """Numbers for the health page; rates are of the last few seconds."""
        groups, outboxes = self.groups, [group.rollouts.outbox for group in self.groups]
        refused = sum((servers.refused for servers in self._servers), Counter[Refusal]())
        peers = {"envserver": Plane.STEPS, "broker": Plane.INFERENCE}
        cut = {peer: sum(group.planes[plane].cut for group in groups) for peer, plane in peers.items()}
        return {
            "groups": len(groups),
            "envs": sum(group.num_envs for group in groups),
            "agent_steps": sum(group.steps.agent_steps for group in groups),
            "rollouts_sent": sum(outbox.sent for outbox in outboxes),
            "unacked": sum(outbox.unacked for outbox in outboxes),
            "rollouts": sum(outbox.seq for outbox in outboxes) * groups[0].num_envs,
            "rollouts_cut": sum(cut.values()),
            "rollouts_cut_by_peer": cut,
            "streams": [[each.stream.slot, groups[0].num_envs, each.seq, each.acked] for each in outboxes],
            "sender": self.sender,
            "policy_version": max(group.inference.version for group in groups),
            "policy_version_drops": sum(group.inference.version_drops for group in groups),
            "episodes_dropped": sum(outbox.episodes_dropped for outbox in outboxes),
            "reconnects": self._reconnects,
            "moves": sum(link.moves for links in self._links.values() for link in links),
            "setbacks": sum(link.stream.setbacks for link in self._greeting),
            "trouble": self._trouble(self.clock()),
            "refused": refused.total(),
            "refused_by_reason": dict(refused),
            **self._rates(self.clock()),
        }

    @property
    def _greeting(self) -> Iterator[Link]:
        """The links on which it is known what to say HELLO with."""
        return (link for links in self._links.values() for link in links if link.end.greets)

    def _look_for_servers(self, now: float) -> None:
        changed = False
        for servers in self._servers:
            for slot in servers.refresh(now):
                self._links[servers][slot].abandon(now)
            changed |= servers.connect(self._context)
            if servers.lost and not servers.ports and now - self.awake_since > self.config.actor.connect_timeout_s:
                raise servers.lost
        if changed:
            self._renew_poller()

    def _send_due(self, now: float) -> None:
        for link in self._greeting:
            link.send_due(now)

    def _receive(self, servers: Servers, now: float) -> None:
        dismissed, links = [], self._links[servers]
        for port, message in servers.received():
            link = links[message.header.slot]
            was_open = link.stream.open
            link.group.take(servers.plane, message, port.refuse, now)
            if message.header.kind is Kind.BYE and was_open and not link.stream.open:
                dismissed.append(link)
        for link in dismissed:
            self._try_elsewhere(link, now)

    def _silence_s(self, link: Link, now: float) -> float:
        return min(link.stream.silent_s(now), now - self.awake_since)

    def _watch(self, link: Link, now: float) -> None:
        """Give up on a server that stays away too long; before, try another one or a new connection.

        Raises:
          PeerLost: no server has answered for `actor.connect_timeout_s`, or had room.
        """
        silence = self._silence_s(link, now)
        if silence > (limit_s := self.config.actor.connect_timeout_s):
            raise PeerLost(link.complaint(limit_s))
        link.look(now)
        if link.is_worth_leaving(silence, now) and self._try_elsewhere(link, now):
            return
        if link.is_dead(silence, now):
            self._reopen(link, now)

    def _trouble(self, now: float) -> str:
        """What keeps groups from going on: the first sentence of all, and how many more there are."""
        found = [str(servers.lost) for servers in self._servers if servers.lost and not servers.ports]
        for link in self._greeting:
            found += link.troubles(self._silence_s(link, now))
        return found[0] + (f" (and {len(found) - 1} more)" if found[1:] else "") if found else ""

    def _try_elsewhere(self, link: Link, now: float) -> bool:
        """Move a group to another server, if there is one."""
        if not link.servers.elsewhere(link.slot, now):
            return False
        link.abandon(now)
        link.servers.connect(self._context)
        self._renew_poller()
        return True

    def _reopen(self, link: Link, now: float) -> None:
        """Make a connection anew: one that libzmq gave up comes back."""
        for other in self._links[link.servers]:
            if other.port is link.port:
                other.ask_again(now)
        self._reconnects += 1
        log.warning("%s: connecting anew", link.complaint(self._timeouts.silent))
        if link.port:
            link.port.reopen()
        self._renew_poller()

    def _renew_poller(self) -> None:
        self.poller = Poller([port for servers in self._servers for port in servers.ports.values()])

    def _rates(self, now: float) -> dict[str, float]:
        for group in self.groups:
            group.waits.book(now)
        waited = [sum(group.waits.seconds[wait] for group in self.groups) for wait in Wait]
        steps_per_s, *shares = self._window.per_s(now, sum(group.steps.agent_steps for group in self.groups), *waited)
        fractions = {
            f"waiting_{wait}_fraction": round(share / len(self.groups), 3)
            for wait, share in zip(Wait, shares, strict=True)
        }
        return {"agent_steps_per_s": round(steps_per_s, 1), **fractions}
