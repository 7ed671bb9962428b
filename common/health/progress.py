"""Whether a service makes progress with its work. No sockets, no clock: time is an argument.

Being ready and making progress are different things. A service is ready while it takes work: probes ask for that, since
brokers learn the network from actors, and actors reach the brokers whose probes succeed. A service stalls while it has
work and gets none of it done. One that has nothing to do is idle, which is not its fault.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any


class Progress:
    """What one service has got done, and since when it has got nothing done."""

    def __init__(self, now: float) -> None:
        self._done: object = None
        self._done_at = now
        self._stalled_since = now
        self._refused: Counter[str] = Counter()
        self._refused_then: Counter[str] = Counter()  #: when it last got something done

    def note(
        self, done: object, *, idle: bool, refused: Mapping[str, int], now: float, awake_since: float = 0.0
    ) -> None:
        """Record the current state.

        Args:
          done: a value that changes with every piece of work that is done.
          idle: whether it has nothing to do.
          refused: messages refused since the start, by reason.
          awake_since: since when the process has run without a standstill; a stall before that is excused.
        """
        self._refused = Counter(refused)
        progressed = self._done is not None and done != self._done
        self._done = done
        if progressed:
            self._done_at, self._refused_then = now, self._refused
        if progressed or idle:
            self._stalled_since = now
        self._stalled_since = max(self._stalled_since, awake_since)

    def page(self, now: float) -> dict[str, Any]:
        """For the health page: seconds, and refused messages by reason."""
        return {
            "progress_age_s": round(now - self._done_at, 1),
            "stalled_s": round(now - self._stalled_since, 1),
            "refused_since_progress": dict(self._refused - self._refused_then),
        }
