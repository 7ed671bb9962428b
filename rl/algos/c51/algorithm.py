"""C51: a distribution over returns per action, learned from n rewards and the target network's after them."""

from typing import TypeVar

from zerobeast.rl.algos.c51.config import C51Config
from zerobeast.rl.algos.value.q_learning import QAlgorithm
from zerobeast.rl.algos.value.q_values import Distributions

Settings = TypeVar("Settings", bound=C51Config)


class C51(QAlgorithm[Settings]):
    """See `zerobeast.rl.protocol.Algorithm`."""

    @property
    def values(self) -> Distributions:
        """One distribution per action."""
        return Distributions(self.settings.atoms, self.settings.v_min, self.settings.v_max)
