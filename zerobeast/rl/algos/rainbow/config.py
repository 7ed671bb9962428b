"""Settings of Rainbow."""

from zerobeast.common.settings import AlgorithmSpec
from zerobeast.rl import replay_settings as r
from zerobeast.rl import settings as s
from zerobeast.rl.algos.c51.config import C51Config


class RainbowConfig(C51Config):
    """C51 with the other extensions of DQN. Sources: Hessel et al. 2018, table 1, unless noted."""

    double: r.Double = True
    dueling: r.Dueling = True
    n_step: r.Steps = 3
    priority_exponent: r.PriorityExponent = 0.5
    importance_exponent: r.ImportanceExponent = 0.4
    target_period: r.TargetPeriod = 2_000  # in updates; the paper's 32,000 are frames
    learning_rate: s.LearningRate = 6.25e-5
    epsilon: s.Epsilon = 1.5e-4


SPEC = AlgorithmSpec("rainbow", RainbowConfig, "zerobeast.rl.algos.c51.algorithm:C51")
