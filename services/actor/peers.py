"""How the groups of a process find, ask, hear and leave their servers, plane by plane."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence

from zerobeast.common.errors import PeerLost, Refusal
from zerobeast.common.transport import Context, Poller
from zerobeast.common.wire.messages import Kind
from zerobeast.services.actor.group import Group
from zerobeast.services.actor.link import Link
from zerobeast.services.actor.servers import Servers
from zerobeast.services.actor.timeouts import Timeouts

log = logging.getLogger(__name__)


class Peers:
    """All conversations of some groups.

    Args:
      groups: by slot.
      servers: of each plane that they use; `close` closes them.
      timeouts: how long they wait for what.
      limit_s: time without any answer after which `tick` raises.
      now: seconds, as everywhere here.

    Attributes:
      poller: waits for all sockets; replaced when sockets come or go.
      reconnects: connections that were made anew.
    """

    def __init__(
        self, groups: Sequence[Group], servers: Sequence[Servers], timeouts: Timeouts, limit_s: float, now: float
    ) -> None:
        self.groups, self.servers = groups, servers
        self._timeouts, self._limit_s = timeouts, limit_s
        self._links = {each: [Link(group, each, timeouts, now) for group in groups] for each in servers}
        self.poller, self.reconnects = Poller(), 0

    def open(self, context: Context, now: float) -> None:
        """Connect, with sockets of this context, to servers whose names resolve already."""
        self._context = context
        self._look_for_servers(now, now)

    @property
    def links(self) -> Iterator[Link]:
        """The links on which the terms of HELLO are known."""
        return (link for links in self._links.values() for link in links if link.end.greets)

    @property
    def moves(self) -> int:
        """Moves from one server to another so far."""
        return sum(link.moves for links in self._links.values() for link in links)

    @property
    def refused(self) -> Counter[Refusal]:
        """Malformed replies so far, by reason."""
        return sum((servers.refused for servers in self.servers), Counter[Refusal]())

    def take(self, now: float) -> None:
        """Take the messages that arrived, and send what is due; never waits."""
        for servers in self.servers:
            self.receive(servers, now)
        for link in self.links:
            link.send_due(now)

    def tick(self, now: float, awake_since: float) -> None:
        """Handle servers that appear, leave or stay silent. No message could arrive before `awake_since`.

        Raises:
          PeerLost: no server has answered, or had room, for `limit_s`.
        """
        self._look_for_servers(now, awake_since)
        for link in self.links:
            self._watch(link, now, awake_since)

    def deadline(self) -> float:
        """When something has to be sent."""
        if not all(servers.ports for servers in self.servers):
            return math.inf  # what is due there cannot be sent, and must not make the loop spin
        return min(group.deadline() for group in self.groups)

    def trouble(self, now: float, awake_since: float) -> str:
        """What keeps groups from going on: the first reason, and how many more there are."""
        found = [str(servers.lost) for servers in self.servers if servers.lost and not servers.ports]
        for link in self.links:
            found += link.troubles(_silence_s(link, now, awake_since))
        return found[0] + (f" (and {len(found) - 1} more)" if found[1:] else "") if found else ""

    def prepared(self, servers: Servers, now: float) -> bool:
        """Whether servers are at work on the sessions of all groups, such as env-servers that make environments."""
        return all(link.stream.prepared(now, self._timeouts.silent) for link in self._links[servers])

    def farewell(self) -> None:
        """Say BYE to all servers."""
        for link in self.links:
            link.farewell()

    def close(self) -> None:
        for servers in self.servers:
            servers.close()

    def receive(self, servers: Servers, now: float) -> None:
        """Take the messages that arrived on one plane."""
        dismissed, links = [], self._links[servers]
        for port, message in servers.received():
            link = links[message.header.slot]
            was_open = link.stream.open
            link.group.take(servers.plane, message, port.refuse, now)
            if message.header.kind is Kind.BYE and was_open and not link.stream.open:
                dismissed.append(link)
        for link in dismissed:
            self._try_elsewhere(link, now)

    def _look_for_servers(self, now: float, awake_since: float) -> None:
        """Connect to what the servers' names resolve to now.

        Raises:
          PeerLost: a name has had no address for `limit_s`.
        """
        changed = False
        for servers in self.servers:
            for slot in servers.refresh(now):
                self._links[servers][slot].abandon(now)
            changed |= servers.connect(self._context)
            if servers.lost and not servers.ports and now - awake_since > self._limit_s:
                raise servers.lost
        if changed:
            self._renew_poller()

    def _watch(self, link: Link, now: float, awake_since: float) -> None:
        """Give up on a server that stays away too long; before that, try another one or a new connection."""
        silence = _silence_s(link, now, awake_since)
        if silence > self._limit_s:
            raise PeerLost(link.complaint(self._limit_s))
        link.look(now)
        if link.is_worth_leaving(silence, now) and self._try_elsewhere(link, now):
            return
        if link.is_dead(silence, now):
            self._reopen(link, now)

    def _try_elsewhere(self, link: Link, now: float) -> bool:
        """Move a group to another server, if there is one."""
        if not link.servers.elsewhere(link.slot, now):
            return False
        link.abandon(now)
        link.servers.connect(self._context)
        self._renew_poller()
        return True

    def _reopen(self, link: Link, now: float) -> None:
        """Make a connection anew, since libzmq may have given it up."""
        for other in self._links[link.servers]:
            if other.port is link.port:
                other.ask_again(now)
        self.reconnects += 1
        log.warning("%s: connecting anew", link.complaint(self._timeouts.silent))
        if link.port:
            link.port.reopen()
        self._renew_poller()

    def _renew_poller(self) -> None:
        self.poller = Poller([port for servers in self.servers for port in servers.ports.values()])


def _silence_s(link: Link, now: float, awake_since: float) -> float:
    return min(link.stream.silent_s(now), now - awake_since)
