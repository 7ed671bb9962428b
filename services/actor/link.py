"""How one group reaches its server on one plane, and when it leaves that server. No clock."""

from __future__ import annotations

import logging

from zerobeast.common.transport import ClientPort
from zerobeast.common.wire.messages import Kind, Plane
from zerobeast.services.actor.group import Group
from zerobeast.services.actor.servers import Servers
from zerobeast.services.actor.timeouts import Timeouts

log = logging.getLogger(__name__)

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
        """Say BYE, even to a server that has not answered yet: it may be making environments."""
        if self.port and self.end.greets:
            self.port.send(self.stream.bye())

    def abandon(self, now: float) -> None:
        """Leave the server; another one will be greeted."""
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
