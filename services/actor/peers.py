"""How the groups of a process find, use and leave their servers, plane by plane."""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence

from zerobeast.common.errors import PeerLost, Refusal
from zerobeast.common.transport import ClientPort, Context, Poller
from zerobeast.common.wire.messages import Kind, Plane
from zerobeast.services.actor.group import Group
from zerobeast.services.actor.servers import Servers
from zerobeast.services.actor.waits import Timeouts

MOST_DOUBLINGS = 3  #: of the patience, one per futile move: if all servers are slow, moving loses the work they began


class Link:
    """One group on one plane. All times are in seconds."""

    def __init__(self, group: Group, servers: Servers, timeouts: Timeouts, now: float) -> None:
        self.group, self.servers = group, servers
        self.slot, self.end = group.slot, group.planes[servers.plane]
        self.stream = self.end.stream
        self._timeouts = timeouts
        self._tried_at = self._moved_at = now
        self._absent_since: float | None = None
        self.moves = 0
        self._moves_in_vain = 0  #: since the stream was last open
        self._troubled = False

    @property
    def port(self) -> ClientPort | None:
        return self.servers.port_of(self.slot)

    def send_due(self, now: float) -> None:
        port, rollouts = self.port, self.servers.plane is Plane.ROLLOUTS
        while port and (work := self.end.due(now)):
            header, frames = work
            if not port.send(header, *frames, copy=not rollouts):
                self._absent_since = now if self._absent_since is None else self._absent_since
                return
            self._absent_since = None
            self.end.mark_sent(now)
            if header.kind is Kind.HELLO or not rollouts:
                return

    def farewell(self) -> None:
        """Send BYE, even to a server that has not answered yet: it may be making environments."""
        if self.port and self.end.greets:
            self.port.send(self.stream.bye())

    def abandon(self, now: float) -> None:
        """Leave the server; HELLO goes to another one next."""
        self.farewell()
        self.group.abandon(self.servers.plane, now)
        self.moves += 1
        self._moves_in_vain += 1
        self._tried_at = self._moved_at = now
        self._absent_since = None

    def ask_again(self, now: float) -> None:
        self._tried_at = now  # the connection is new
        self.stream.ask_again(now)

    def look(self, now: float) -> None:
        """Take note of how the conversation goes, and log once that it is in trouble."""
        trouble = self.stream.trouble
        if trouble and not self._troubled:
            log.warning("%s: it is asked less often", trouble)
        self._troubled = bool(trouble)
        if self.stream.open:
            self._moves_in_vain = 0
        if self.port is None:
            self._tried_at = self._moved_at = now  # no address is known: no server can be silent yet

    def is_worth_leaving(self, silence_s: float, now: float) -> bool:
        """Whether the server has been unreachable, silent or useless for too long."""
        here = now - self._moved_at
        absent = 0.0 if self._absent_since is None else min(here, now - self._absent_since)
        useless = here if self.stream.trouble else min(here, silence_s)
        patience = 2.0 ** min(self._moves_in_vain, MOST_DOUBLINGS)
        return absent > self._timeouts.absent * patience or useless > self._timeouts.silent * patience

    def is_dead(self, silence_s: float, now: float) -> bool:
        """Whether the connection has carried nothing for so long that a new one is worth a try."""
        return min(silence_s, now - self._tried_at) > self._timeouts.silent and not self.stream.busy

    def complaint(self, silence_s: float) -> str:
        """A sentence on what is wrong with the server after `silence_s` without an answer."""
        return self.stream.complaint(self.port.malformed if self.port else 0, silence_s)

    def troubles(self, silence_s: float) -> list[str]:
        """What keeps the group from going on with this server, as sentences."""
        silent = [self.complaint(round(silence_s))] if silence_s > self._timeouts.silent else []
        return [self.stream.trouble] * bool(self.stream.trouble) + silent


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
          PeerLost: no server has answered, had room, or sent anything of use for `limit_s`.
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

    def is_preparing(self, servers: Servers, now: float) -> bool:
        """Whether servers are at work on the sessions of all groups, such as env-servers that make environments."""
        return all(link.stream.is_preparing(now, self._timeouts.silent) for link in self._links[servers])

    def farewell(self) -> None:
        """Send BYE to all servers."""
        for link in self.links:
            link.farewell()

    def close(self) -> None:
        for servers in self.servers:
            servers.close()

    def receive(self, servers: Servers, now: float) -> None:
        """Take the messages that arrived on one plane."""
        dismissed, links = [], self._links[servers]
        for port, message in servers.receive():
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
        if link.stream.useless_s > self._limit_s:
            raise PeerLost(link.stream.trouble)
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
