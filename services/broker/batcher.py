"""When to stop collecting requests and infer. No sockets, no threads, no clock: time is an argument.

"A batch closes" in the README here has the rules.

    batcher = Batcher(max_rows=256, max_delay_s=0.005)
    if batcher.fits(rows):
        start = batcher.add(request, rows, sender, now)     # the request's first row in the batch
    if device_is_idle and batcher.closes(now, live_senders):
        requests = batcher.take()                           # in order of arrival
"""

from collections.abc import Set
from typing import Generic, TypeVar

R = TypeVar("R")


class Batcher(Generic[R]):
    """The batch that is being collected.

    Args:
      max_rows: never exceeded.
      max_delay_s: how long a request waits for others at most, while the device is idle.
    """

    def __init__(self, max_rows: int, max_delay_s: float) -> None:
        self.max_rows = max_rows
        self.max_delay_s = max_delay_s
        self.rows = 0  #: of the requests so far
        self._full = False
        self._oldest_at = float("inf")
        self._senders: set[int] = set()
        self._requests: list[R] = []

    def __len__(self) -> int:
        return len(self._requests)

    def fits(self, rows: int) -> bool:
        """Whether a request of `rows` rows can be added. If not, the batch is full: none may overtake that request."""
        if self.rows + rows > self.max_rows:
            self._full = True
        return not self._full

    def add(self, request: R, rows: int, sender: int, now: float) -> int:
        """Append a request that fits and return the index of its first row."""
        assert 0 < rows <= self.max_rows - self.rows, "ask fits() first"
        start, self.rows = self.rows, self.rows + rows
        self._full = self.rows == self.max_rows
        self._oldest_at = min(self._oldest_at, now)
        self._senders.add(sender)
        self._requests.append(request)
        return start

    def closes(self, now: float, live: Set[int]) -> bool:
        """Whether an idle device should compute the batch now.

        Args:
          now: the time, in the unit that `add` was given.
          live: the clients that may send requests.
        """
        if not self._requests:
            return False
        return self._full or self._senders >= live or now >= self._oldest_at + self.max_delay_s

    def deadline(self) -> float:
        """When the oldest request has waited long enough; infinity while there is none."""
        return self._oldest_at + self.max_delay_s

    def take(self) -> list[R]:
        """Hand out the batch, in order of arrival, and begin the next."""
        requests, self._requests, self._senders = self._requests, [], set()
        self.rows, self._full, self._oldest_at = 0, False, float("inf")
        return requests
