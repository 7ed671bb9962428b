"""How long each step on the way of an experience takes: histograms that the services keep and everybody can add up.

    env-server   env_step                                                  a request's way through the environments
    actor        env_round_trip, broker_round_trip, credit_wait            as the client sees it, wire included
    broker       batch_wait, forward                                       from a request's arrival to its answer
    learner      rollout_queue, learner_wait, update, publish              from a rollout's arrival to new weights

The buckets are the same everywhere, so histograms of several processes, or of two moments, are added and subtracted
number by number. One entry costs less than a microsecond, and there is one per message, never one per environment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

#: role -> hop -> meaning, in the order in which an experience passes them
HOPS: dict[str, dict[str, str]] = {
    "envserver": {"env_step": "from a request to the observations of a whole env group"},
    "actor": {
        "env_round_trip": "from sending actions to having observations",
        "broker_round_trip": "from sending observations to having actions",
        "credit_wait": "a full unroll waits for the learner to use an earlier one",
    },
    "broker": {
        "batch_wait": "a request waits for its batch to close and the device to be free",
        "forward": "one batch through the network",
    },
    "learner": {
        "rollout_queue": "from a rollout's arrival to the update that uses its last row",
        "learner_wait": "the learner waits for a full batch",
        "update": "one batch: assembly, loss, gradient, optimiser",
        "publish": "weights are copied out and handed to the subscribers",
    },
}
DECADES = range(-5, 2)  #: 10 us to 50 s
EDGES_S = tuple(step * 10.0**decade for decade in DECADES for step in (1, 2, 5))  #: upper ends; one bucket more follows
RECENT_S = 5.0
SPACING_S = 0.4  #: between two marks of the window

Counts = Sequence[int]


class Histogram:
    """Durations by bucket."""

    __slots__ = ("buckets", "sum_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(EDGES_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.buckets[bisect_left(EDGES_S, seconds)] += 1
        self.sum_s += seconds


class Hops:
    """The histograms of one process.

    Args:
      role: of its service.
      now: when counting begins.
    """

    def __init__(self, role: str, now: float) -> None:
        self._histograms = {name: Histogram() for name in HOPS.get(role, {})}
        self._marks = deque([(now, self._counts())])

    def add(self, hop: str, seconds: float) -> None:
        """Count one passage."""
        self._histograms[hop].add(seconds)

    def page(self, now: float) -> dict[str, dict[str, Any]]:
        """Per hop: `buckets` and `sum_s` since the start, and `recent`, the buckets of the last seconds."""
        counts = self._counts()
        if now - self._marks[-1][0] >= SPACING_S:
            self._marks.append((now, counts))
        while len(self._marks) > 1 and self._marks[1][0] <= now - RECENT_S:
            self._marks.popleft()
        then = self._marks[0][1]
        return {
            name: {
                "buckets": counts[name],
                "sum_s": round(histogram.sum_s, 6),
                "recent": [new - old for new, old in zip(counts[name], then[name], strict=True)],
            }
            for name, histogram in self._histograms.items()
        }

    def _counts(self) -> dict[str, list[int]]:
        return {name: list(histogram.buckets) for name, histogram in self._histograms.items()}


def recent(pages: Sequence[Mapping[str, Any]], hop: str) -> list[int]:
    """The buckets of the last seconds of one hop, added up over health pages; all 0 where none knows it."""
    total = [0] * (len(EDGES_S) + 1)
    for page in pages:
        hops = page.get("hops")
        counts = hops.get(hop, {}).get("recent") if isinstance(hops, Mapping) else None
        if isinstance(counts, list) and len(counts) == len(total):
            total = [sum(pair) for pair in zip(total, counts, strict=True)]
    return total


def quantile(counts: Counts, share: float) -> float | None:
    """The duration that `share` of the entries stay below, in seconds, evenly spread within a bucket; None of none."""
    wanted, below = share * sum(counts), 0
    if not sum(counts):
        return None
    edges = (0.0, *EDGES_S)
    for index, count in enumerate(counts):
        if count and below + count >= wanted:
            low, high = edges[index], edges[min(index + 1, len(EDGES_S))]
            return low + (high - low) * (wanted - below) / count
        below += count
    return EDGES_S[-1]


def mean(counts: Counts) -> float | None:
    """Their mean in seconds, each entry taken as the middle of its bucket; None of none."""
    edges = (0.0, *EDGES_S, EDGES_S[-1])
    total = sum(counts)
    return sum(n * (edges[i] + edges[i + 1]) / 2 for i, n in enumerate(counts)) / total if total else None


def wires(pages: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean seconds between an actor and each kind of server that the server does not account for: wire and sockets."""
    served = {
        "env-server": ("env_round_trip", ("env_step",)),
        "broker": ("broker_round_trip", ("batch_wait", "forward")),
    }
    found = {}
    for peer, (whole, parts) in served.items():
        means = [mean(recent(pages, hop)) for hop in (whole, *parts)]
        if None not in means:
            trip, *inside = (value or 0.0 for value in means)
            found[peer] = max(0.0, trip - sum(inside))
    return found


def step_s(pages: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean seconds of one agent step of an env group: both round trips."""
    trips = [mean(recent(pages, hop)) for hop in ("env_round_trip", "broker_round_trip")]
    return None if None in trips else sum(value or 0.0 for value in trips)
