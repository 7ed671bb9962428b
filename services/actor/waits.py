"""What an env group waits for, and for how long. No clock."""

from __future__ import annotations

from enum import StrEnum

from zerobeast.common.health.hops import Hops


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
