"""What an env group waits for, how long it has waited, and how long an actor waits at most. No clock."""

from dataclasses import dataclass
from enum import StrEnum

from zerobeast.common.health.hops import Hops


@dataclass(frozen=True)
class Timeouts:
    """All in seconds."""

    silent: float = 10.0  #: for a server that can be reached, before another one or a new connection is tried
    absent: float = 1.0  #: for a server that cannot be reached, before another one is tried
    #: Without an ACK for this long, HELLO checks whether the learner still has this session, even with nothing in
    #: flight: a learner that lost its only checkpoint makes new weights for the first actor that sends it HELLO.
    no_progress: float = 10.0
    lookup: float = 5.0  #: between lookups, to learn of servers that came or left
    retry_lookup: float = 1.0  #: between lookups while no server is known
    forgive: float = 60.0  #: before groups may go back to a server that was away


TIMEOUTS = Timeouts()


class Wait(StrEnum):
    CONNECT = "connect"
    ENV = "env"
    BROKER = "broker"
    CREDIT = "credit"


#: the hop that a wait is recorded as when it ends, unless a peer's restart cuts it short
HOP_OF = {Wait.ENV: "env_round_trip", Wait.BROKER: "broker_round_trip", Wait.CREDIT: "credit_wait"}


class Waits:
    """The waits of one group, one at a time. `now` is in seconds."""

    def __init__(self, now: float, hops: Hops) -> None:
        self.current = Wait.CONNECT
        self.seconds = dict.fromkeys(Wait, 0.0)
        self._hops = hops
        self._booked_at, self._entered_at = now, now

    def enter(self, wait: Wait, now: float) -> None:
        self.book(now)
        if wait is not Wait.CONNECT and self.current in HOP_OF:
            self._hops.add(HOP_OF[self.current], now - self._entered_at)
        self.current, self._entered_at = wait, now

    def book(self, now: float) -> None:
        """Book the time waited so far."""
        self.seconds[self.current] += now - self._booked_at
        self._booked_at = now
