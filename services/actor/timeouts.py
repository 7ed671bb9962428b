"""How long an actor waits for what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeouts:
    """All in seconds."""

    silent: float = 10.0  #: for a server that can be reached, before another one or a new connection is tried
    absent: float = 1.0  #: for a server that cannot be reached, before another one is tried
    #: Without an ACK for this long, ask by HELLO whether the learner still knows us, even with nothing in flight: a
    #: learner that lost its only checkpoint makes new weights for the first actor that greets it.
    no_progress: float = 10.0
    lookup: float = 5.0  #: between lookups, to learn of servers that came or left
    retry_lookup: float = 1.0  #: between lookups while no server is known
    forgive: float = 60.0  #: before groups may go back to a server that was away


TIMEOUTS = Timeouts()
