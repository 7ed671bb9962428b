"""Which processes act: how far their policies are behind, and the versions of the weights that they are sent."""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import RunConfig
from zerobeast.common.transport import WeightsPublisher, checksum, chunks
from zerobeast.common.wire.messages import Header, Kind
from zerobeast.rl.acting.weights_inbox import shared_place
from zerobeast.rl.nets import Network, WeightsWriter, pick_dtype
from zerobeast.rl.nets.weights import flatten, layout_id
from zerobeast.rl.protocol import Algorithm

log = logging.getLogger(__name__)

SPAN_S = 60.0  #: how long a process counts after its last rollout
MAX_PROCESSES = 1024  #: processes kept at most, whatever peers claim
SHOWN_PROCESSES = 16  #: processes whose figures are reported one by one
SMOOTHING = 0.5  #: weight of a new measurement of the divergence


@dataclass
class ActingProcess:
    """A process that acts: a broker, alone or in a worker."""

    number: int  #: in the order in which they appeared
    seen_at: float
    version: int = -1  #: the newest that it acted with
    syncs: int = 0  #: versions that it was seen to act with
    divergence: float | None = None  #: of the present policy from that version


class ActingProcesses:
    """The acting processes of a run, by their epochs. Pure."""

    def __init__(self) -> None:
        self.syncs = 0  #: sum over all processes, also those dropped since
        self.published = -1  #: the newest version of this start of the learner
        self._known: dict[int, ActingProcess] = {}  # in the order in which they were last seen
        self._appeared = 0

    def __len__(self) -> int:
        """How many there are."""
        return len(self._known)

    def note(self, epoch: int, version: int, now: float) -> None:
        """Take note of the process behind a rollout and the newest version in it; epoch 0 means unknown.

        A newer version than was published comes from a start of the learner that got further than its checkpoint.
        """
        if not epoch:
            return
        acting = self._known.pop(epoch, None)
        if acting is None:
            acting = ActingProcess(self._appeared, now)
            self._appeared += 1
        acting.seen_at = now
        if acting.version < version <= self.published:
            acting.version, acting.divergence, acting.syncs = version, None, acting.syncs + 1
            self.syncs += 1
        self._known[epoch] = acting
        if len(self._known) > MAX_PROCESSES:
            del self._known[next(iter(self._known))]

    def forget(self, now: float) -> None:
        """Drop processes that have sent no rollout for SPAN_S."""
        gone = [epoch for epoch, acting in self._known.items() if now - acting.seen_at > SPAN_S]
        for epoch in gone:
            del self._known[epoch]

    def measure(self, epochs: NDArray[np.int64], versions: NDArray[np.int64], divergences: NDArray[np.float32]) -> None:
        """Take divergences of the present policy from those that acted.

        Args:
          epochs: [B] of the processes that acted in the rollouts; unknown ones do not count.
          versions: [B, T] that acted.
          divergences: [B, T]; NaN if a step has none.
        """
        for epoch in np.unique(epochs).tolist():
            if (acting := self._known.get(epoch)) is None:
                continue
            rows = epochs == epoch
            values = divergences[rows][(versions[rows] == acting.version) & np.isfinite(divergences[rows])]
            if len(values):
                new = float(values.mean())
                before = new if acting.divergence is None else acting.divergence
                acting.divergence = before + SMOOTHING * (new - before)

    def news(self) -> list[list[Any]]:
        """[epoch, version, divergence] of each measured process: the body of NEWS."""
        return [
            [epoch, acting.version, acting.divergence]
            for epoch, acting in self._known.items()
            if acting.divergence is not None
        ]

    def page(self, newest: int) -> dict[str, Any]:
        """For the health page: figures of the first SHOWN processes, by number; `newest` is the newest version."""
        shown = sorted(self._known.values(), key=lambda acting: acting.number)[:SHOWN_PROCESSES]
        return {
            "syncs": self.syncs,
            "syncs_by_acting": {acting.number: acting.syncs for acting in shown},
            "lag_by_acting": {acting.number: max(0, newest - acting.version) for acting in shown},
            "divergence_by_acting": {
                acting.number: acting.divergence for acting in shown if acting.divergence is not None
            },
        }


class VersionPublisher:
    """Publishes the weights of one start of a learner.

    Args:
      publisher: of the weights; None on a rank after the first, whose weights are those that the first one publishes.
      shared: memory where processes on this machine find them too.
      epoch: of this start.
      acting: the processes whose divergences are news.
    """

    def __init__(
        self, publisher: WeightsPublisher | None, shared: WeightsWriter | None, epoch: int, acting: ActingProcesses
    ) -> None:
        self.version = -1  #: the newest that went out
        self.n_bytes = 0  #: of one version
        self._publisher, self._shared, self._epoch, self._acting = publisher, shared, epoch, acting

    def publish(self, net: Network, version: int) -> None:
        """Publish a version, and announce it."""
        if self._shared is not None:
            self._shared.write(net, version)
        if self._publisher is not None:
            snapshot = flatten(net)
            body = (version, layout_id(net), snapshot.nbytes, checksum(snapshot), len(chunks(snapshot)))
            self._publisher.publish(Header(Kind.WEIGHTS, 0, epoch=self._epoch, seq=version, body=body), snapshot)
            self.n_bytes = snapshot.nbytes
        self.version = self._acting.published = version
        self.tell(int(net.agent_steps))

    def tell(self, agent_steps: int) -> None:
        """Announce which version is the newest, the steps of the run, and how far the policy is from those that act."""
        if self._publisher is not None:
            body = (self.version, self._acting.news(), agent_steps)
            self._publisher.tell(Header(Kind.NEWS, 0, epoch=self._epoch, seq=self.version, body=body))


def shared_writer(config: RunConfig, algorithm: Algorithm, epoch: int) -> WeightsWriter | None:
    """Shared memory for weights that processes on this machine act with, in the formats of a broker on its CPU."""
    if (place := shared_place(config)) is None:
        return None
    net = algorithm.network()
    net.lower(pick_dtype(config.broker.precision, torch.device("cpu")))
    try:
        return WeightsWriter(place, net, epoch)
    except (OSError, ConfigError) as error:
        if config.deterministic:
            raise ConfigError(f"deterministic: no memory to share the weights: {error}") from error
        log.warning("weights travel by socket, also on this machine: no memory to share: %s", error)
        return None
