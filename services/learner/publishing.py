"""Publishes versions of the weights, and news of them, to the processes that act."""

from zerobeast.common.transport import WeightsPublisher, checksum, chunks
from zerobeast.common.wire.messages import Header, Kind
from zerobeast.rl.nets import Network, WeightsWriter
from zerobeast.rl.nets.weights import flatten, layout_id
from zerobeast.services.learner.acting import ActingProcesses


class Publishing:
    """Publishes the weights of one start of a learner.

    Args:
      publisher: of the weights.
      shared: memory where processes on this machine find them too.
      epoch: of this start.
      acting: the processes whose divergences are news.
    """

    def __init__(
        self, publisher: WeightsPublisher, shared: WeightsWriter | None, epoch: int, acting: ActingProcesses
    ) -> None:
        self.version = -1  #: the newest that went out
        self.n_bytes = 0  #: of one version
        self._publisher, self._shared, self._epoch, self._acting = publisher, shared, epoch, acting

    def publish(self, net: Network, version: int) -> None:
        """Publish a version, and announce it."""
        if self._shared is not None:
            self._shared.write(net, version)
        snapshot = flatten(net)
        body = (version, layout_id(net), snapshot.nbytes, checksum(snapshot), len(chunks(snapshot)))
        self._publisher.publish(Header(Kind.WEIGHTS, 0, epoch=self._epoch, seq=version, body=body), snapshot)
        self.version, self.n_bytes = version, snapshot.nbytes
        self._acting.published = version
        self.tell(int(net.agent_steps))

    def tell(self, agent_steps: int) -> None:
        """Announce which version is the newest, the steps of the run, and how far the policy is from those that act."""
        body = (self.version, self._acting.news(), agent_steps)
        self._publisher.tell(Header(Kind.NEWS, 0, epoch=self._epoch, seq=self.version, body=body))
