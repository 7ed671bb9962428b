"""Weights plane: milliseconds from publishing a version until eight processes on this machine have received it.

The publisher is the learner's; the subscribers receive like brokers and verify the checksum. A version is published
once all subscribers have the previous one.
"""

import statistics
import time
from contextlib import closing
from multiprocessing.connection import Connection
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import BeastError
from zerobeast.common.transport import Context, Poller, WeightsPublisher, checksum, chunks, random_id
from zerobeast.common.wire.messages import Header, Kind
from zerobeast.rl.acting.weights_inbox import WeightsInbox
from zerobeast_tools.bench.figures import Figure, Goal, figure
from zerobeast_tools.bench.options import run_plane
from zerobeast_tools.bench.processes import plane_processes

SUBSCRIBERS = 8
WEIGHTS_BYTES = 6_400_000
FEWEST_VERSIONS = 3
MAX_WAIT_S = 0.1
SPREAD = Goal("<=", 60)  #: milliseconds


def main(argv: list[str]) -> int:
    """`beast bench weights`."""
    return run_plane("weights", __doc__, argv, measure)


def measure(seconds: float) -> list[Figure]:
    """The median over all versions published in `seconds`."""
    what = f"weights, {WEIGHTS_BYTES / 1e6:.1f} MB over ipc: until the last of {SUBSCRIBERS} has them"
    return [figure(what, 1000 * statistics.median(_spreads_s(seconds)), "ms", SPREAD)]


def _spreads_s(seconds: float) -> list[float]:
    """Per version, the seconds from publishing it to the last subscriber's checked copy."""
    spreads: list[float] = []
    with plane_processes() as (folder, context, processes):
        endpoint = f"ipc://{folder}/learner"
        with closing(WeightsPublisher(context, endpoint)) as publisher:
            learner = WeightsSource(publisher, np.random.default_rng(0).integers(0, 256, WEIGHTS_BYTES, np.uint8))
            subscribers = [processes.start(subscribe, endpoint) for _ in range(SUBSCRIBERS)]
            learner.publish()
            processes.until_heard(subscribers, meanwhile=learner.welcome)
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
      publisher: to publish them with.
      weights: the first version.
      layout: of the network that they belong to.
    """

    def __init__(self, publisher: WeightsPublisher, weights: NDArray[np.uint8], layout: int = 0) -> None:
        self.version = -1
        self._publisher, self._weights, self._layout = publisher, weights, layout
        self._epoch = random_id()

    def publish(self) -> float:
        """Publish the next version; returns when, in monotonic seconds that all processes share."""
        self.version += 1
        snapshot = self._weights + np.uint8(self.version % 256)
        body = (self.version, self._layout, snapshot.nbytes, checksum(snapshot), len(chunks(snapshot)))
        header = Header(Kind.WEIGHTS, 0, epoch=self._epoch, seq=self.version, body=body)
        now = time.monotonic()
        self._publisher.publish(header, snapshot)
        return now

    def welcome(self) -> None:
        """Send the newest version to new subscribers."""
        Poller([self._publisher]).wait(0.05)
        self._publisher.welcome()


def subscribe(pipe: Connection, endpoint: str) -> NoReturn:
    """Send [version, monotonic seconds] of every version that has arrived whole, in preallocated memory."""
    inbox = WeightsInbox(Context(), endpoint, layout_id=0, n_bytes=WEIGHTS_BYTES)
    while True:
        inbox.connect(time.monotonic())
        Poller([inbox]).wait(MAX_WAIT_S)
        if inbox.newest(time.monotonic()) is not None:
            pipe.send([inbox.version, time.monotonic()])
