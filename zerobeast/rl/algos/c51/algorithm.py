"""C51: a distribution over returns per action, learned from n rewards and the target network's after them."""

from zerobeast.rl.algos.c51.config import C51Config
from zerobeast.rl.algos.value.q_learning import QAlgorithm
from zerobeast.rl.algos.value.q_values import Distributions


class C51(QAlgorithm[C51Config]):
    """See `zerobeast.rl.protocol.Algorithm`. Rainbow is the same with other settings."""

    @property
    def values(self) -> Distributions:
        """One distribution per action."""
        return Distributions(self.settings.atoms, self.settings.v_min, self.settings.v_max)
