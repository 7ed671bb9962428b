"""The weights plane: milliseconds from publishing a version until eight processes on this machine have it.

The publisher is the learner's, the subscribers receive as a broker does and check the checksum. A version goes out
when the one before has arrived everywhere.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import BeastError
from zerobeast.common.runtime.memory import keep_freed_memory
from zerobeast.common.transport import Context, Poller, WeightsPublisher, checksum, chunks, random_id
from zerobeast.common.wire.messages import Header, Kind
from zerobeast.launcher.private_folder import private_folder
from zerobeast.tools.bench.figures import Figure, Goal, figure
from zerobeast.tools.bench.options import emit_figures, parse_plane
from zerobeast.tools.bench.processes import Processes
from zerobeast.tools.bench.weights_subscriber import subscribe

SUBSCRIBERS = 8
WEIGHTS_BYTES = 6_400_000
FEWEST_VERSIONS = 3
SPREAD = Goal("<=", 60)  #: milliseconds


def main(argv: list[str]) -> int:
    """`beast bench weights`."""
    options = parse_plane("weights", argv)
    emit_figures(measure(options.seconds), options.json)
    return 0


def measure(seconds: float) -> list[Figure]:
    """The median over the versions of `seconds`."""
    keep_freed_memory()
    what = f"weights, {WEIGHTS_BYTES / 1e6:.1f} MB over ipc: until the last of {SUBSCRIBERS} has them"
    return [figure(what, 1000 * statistics.median(_spreads_s(seconds)), "ms", SPREAD)]


def _spreads_s(seconds: float) -> list[float]:
    """Per version, the seconds from publishing it to the last subscriber's checked copy."""
    spreads: list[float] = []
    with ExitStack() as resources:
        endpoint = f"ipc://{resources.enter_context(private_folder())}/learner"
        context = Context()
        resources.callback(context.term)
        learner = WeightsSource(context, endpoint)
        resources.callback(learner.publisher.close)
        processes = resources.enter_context(Processes())
        subscribers = [processes.start(subscribe, endpoint, WEIGHTS_BYTES) for _ in range(SUBSCRIBERS)]
        learner.publish()
        processes.until_heard(subscribers, meanwhile=lambda: welcome(learner.publisher))
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(spreads) < FEWEST_VERSIONS:
            published_at = learner.publish()
            arrivals = [subscriber.hear() for subscriber in subscribers]
            if any(version != learner.version for version, _ in arrivals):
                raise BeastError(f"subscribers hold {arrivals}, expected version {learner.version} everywhere")
            spreads.append(max(at for _, at in arrivals) - published_at)
    return spreads


class WeightsSource:
    """Publishes versions that all differ.

    Args:
      context: of this process.
      endpoint: to bind.
    """

    def __init__(self, context: Context, endpoint: str) -> None:
        self.publisher = WeightsPublisher(context, endpoint)
        self.version = -1
        self._epoch = random_id()
        self._weights: NDArray[np.uint8] = np.random.default_rng(0).integers(0, 256, WEIGHTS_BYTES, np.uint8)

    def publish(self) -> float:
        """Publish the next version; returns when, in monotonic seconds that all processes share."""
        self.version += 1
        snapshot = self._weights + np.uint8(self.version % 256)
        body = (self.version, 0, snapshot.nbytes, checksum(snapshot), len(chunks(snapshot)))
        header = Header(Kind.WEIGHTS, 0, epoch=self._epoch, seq=self.version, body=body)
        now = time.monotonic()
        self.publisher.publish(header, snapshot)
        return now


def welcome(publisher: WeightsPublisher) -> None:
    """Give the newest version to those that have subscribed since."""
    Poller([publisher]).wait(0.05)
    publisher.welcome()
