"""Settings of DQN."""

from zerobeast.common.settings import AlgorithmSpec, setting
from zerobeast.rl import replay_settings as r
from zerobeast.rl import settings as s


class DQNConfig(r.QSettings):
    """Deep Q-learning. Sources: Mnih et al. 2015, extended data table 1, unless noted."""

    huber: float = setting(1.0, "Huber loss: |TD error| above which the loss is linear", gt=0)
    batch_size: r.BatchSize = 32
    samples_per_insert: r.SamplesPerInsert = 8.0  # an update every 4 steps
    target_period: r.TargetPeriod = 2_500  # in updates; the paper's 10,000 are agent steps
    learning_rate: s.LearningRate = 1e-4  # with Adam: Stooke & Abbeel 2019 (rlpyt), as is the clip
    epsilon: s.Epsilon = 1e-5  # as for PPO here
    max_grad_norm: s.MaxGradNorm = 10.0


SPEC = AlgorithmSpec("dqn", DQNConfig, "zerobeast.rl.algos.dqn.algorithm:DQN")
