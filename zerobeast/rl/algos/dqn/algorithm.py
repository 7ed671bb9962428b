"""DQN: one value per action, learned from the rewards of n steps and the target network's value after them."""

from zerobeast.rl.algos.dqn.config import DQNConfig
from zerobeast.rl.algos.value.q_learning import QAlgorithm
from zerobeast.rl.algos.value.q_values import Scalars


class DQN(QAlgorithm[DQNConfig]):
    """See `zerobeast.rl.protocol.Algorithm`."""

    @property
    def values(self) -> Scalars:
        """One number per action."""
        return Scalars(self.settings.huber)
