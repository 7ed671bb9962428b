"""How long each hop on the path of an experience takes: histograms that the services keep and any reader can add up.

The buckets are the same everywhere, so histograms of several processes or points in time can be added and subtracted
bucket by bucket. One entry costs less than a microsecond, and there is one per message, never one per environment.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zerobeast.common.health.figures import MAX_NUMBER, to_finite
from zerobeast.common.health.sliding_window import SlidingWindow

#: role -> hop -> meaning, in the order in which an experience passes them
HOPS: dict[str, dict[str, str]] = {
    "envserver": {"env_step": "from a request to the observations of the whole env group"},
    "actor": {
        "env_round_trip": "from sending actions to receiving observations",
        "broker_round_trip": "from sending observations to receiving actions",
        "credit_wait": "a full unroll waits until the learner has used an earlier one",
    },
    "broker": {
        "batch_wait": "a request waits until its batch is closed and the device is free",
        "forward": "one batch through the network",
    },
    "learner": {
        "rollout_queue": "from a rollout's arrival to the update that uses its last row",
        "learner_wait": "the learner waits for a full batch",
        "update": "one batch: assembly, loss, gradient, optimiser",
        "publish": "weights are copied and sent to the subscribers",
    },
}
DECADES = range(-5, 2)  #: 10 us to 50 s
EDGES_S = tuple(step * 10.0**decade for decade in DECADES for step in (1, 2, 5))  #: upper ends; one more bucket follows
RECENT_S = 5.0


@dataclass(slots=True)
class Histogram:
    """Durations by bucket."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(EDGES_S) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(EDGES_S, seconds)] += 1
        self.sum_s += seconds

    @property
    def mean_s(self) -> float | None:
        """Mean duration; None if nothing passed."""
        passed = sum(self.buckets)
        return self.sum_s / passed if passed else None

    def quantile_s(self, share: float) -> float | None:
        """The duration below which `share` of them lie, taken as evenly spread within a bucket; None if none passed."""
        wanted, below = share * sum(self.buckets), 0
        if not sum(self.buckets):
            return None
        edges = (0.0, *EDGES_S)
        for index, count in enumerate(self.buckets):
            if count and below + count >= wanted:
                low, high = edges[index], edges[min(index + 1, len(EDGES_S))]
                return low + (high - low) * (wanted - below) / count
            below += count
        return EDGES_S[-1]


class Hops:
    """The histograms of one service, one for each hop of its `role`."""

    def __init__(self, role: str, now: float) -> None:
        self._histograms = {name: Histogram() for name in HOPS.get(role, {})}
        self._windows = {name: SlidingWindow(RECENT_S) for name in self._histograms}
        self.page(now)

    def add(self, hop: str, seconds: float) -> None:
        self._histograms[hop].add(seconds)

    def page(self, now: float) -> dict[str, dict[str, Any]]:
        """Per hop: `buckets` and `sum_s` since the start, `recent` and `recent_s` the same over `RECENT_S`."""
        page = {}
        for name, one in self._histograms.items():
            _, (*passed, passed_s) = self._windows[name].growth(now, *one.buckets, one.sum_s)
            page[name] = {"buckets": list(one.buckets), "sum_s": one.sum_s, "recent": passed, "recent_s": passed_s}
        return page


def merge_recent(pages: Iterable[Mapping[str, Any]], hop: str) -> Histogram:
    """The recent histogram of a hop, added up over health pages; a page without the hop adds nothing."""
    whole = Histogram()
    for page in pages:
        if entry := _read_hop(page, hop):
            whole.buckets = [old + new for old, new in zip(whole.buckets, entry.buckets, strict=True)]
            whole.sum_s += entry.sum_s
    return whole


def _read_hop(page: Mapping[str, Any], hop: str) -> Histogram | None:
    """One hop of a page, which may come from any peer."""
    hops = page.get("hops")
    entry = hops.get(hop) if isinstance(hops, Mapping) else None
    if not isinstance(entry, Mapping):
        return None
    counts, sum_s = entry.get("recent"), to_finite(entry.get("recent_s"))
    if not isinstance(counts, list) or len(counts) != len(EDGES_S) + 1 or sum_s is None:
        return None
    good = all(type(count) is int and 0 <= count <= MAX_NUMBER for count in counts)
    return Histogram(counts, float(sum_s)) if good else None


def wires(pages: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean seconds of a round trip to each kind of server that the server does not account for: wire and sockets."""
    served = {
        "env-server": ("env_round_trip", ("env_step",)),
        "broker": ("broker_round_trip", ("batch_wait", "forward")),
    }
    found = {}
    for peer, (whole, parts) in served.items():
        trip, inside = _mean_s(pages, whole), _mean_s(pages, *parts)
        if trip is not None and inside is not None:
            found[peer] = max(0.0, trip - inside)
    return found


def step_s(pages: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean seconds of one agent step of an env group: both round trips."""
    return _mean_s(pages, "env_round_trip", "broker_round_trip")


def _mean_s(pages: Sequence[Mapping[str, Any]], *hops: str) -> float | None:
    """Mean seconds of these hops together; None if nothing passed one of them."""
    means = [merge_recent(pages, hop).mean_s for hop in hops]
    return None if None in means else sum(mean or 0.0 for mean in means)
