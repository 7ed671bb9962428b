"""Which brokers chose the actions of the rollouts that came lately. Pure."""

from __future__ import annotations

SPAN_S = 60.0  #: for which a broker counts after a rollout of its
MOST = 1024  #: that are remembered, whatever peers claim


class ActingProcesses:
    """The epochs of the brokers that act, by when they were last seen in a ROLLOUT."""

    def __init__(self) -> None:
        self._seen_at: dict[int, float] = {}  # the oldest first

    def __len__(self) -> int:
        """How many there are."""
        return len(self._seen_at)

    def note(self, acting: int, now: float) -> None:
        """Take note of the broker of a rollout; 0 is none that is known."""
        self._seen_at.pop(acting, None)
        if acting:
            self._seen_at[acting] = now
        if len(self._seen_at) > MOST:
            del self._seen_at[next(iter(self._seen_at))]

    def forget(self, now: float) -> None:
        """Forget those that no rollout came from for SPAN_S."""
        gone = [acting for acting, at in self._seen_at.items() if now - at > SPAN_S]
        for acting in gone:
            del self._seen_at[acting]
