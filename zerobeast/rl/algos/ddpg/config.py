"""Settings of DDPG."""

from typing import ClassVar

from zerobeast.common.settings import AlgorithmSpec, setting
from zerobeast.rl import replay_settings as r
from zerobeast.rl import settings as s


class DDPGConfig(r.BoxSettings):
    """Deep deterministic policy gradient. Sources: Lillicrap et al. 2016, appendix 7, unless noted."""

    drawing_explores: ClassVar[bool] = True

    noise: float = setting(
        0.1, "standard deviation of the exploration noise, in units of half the action range", ge=0
    )  # TD3's paper
    policy_rate: r.PolicyRate = 0.1
    learning_rate: s.LearningRate = 1e-3
    batch_size: r.BatchSize = 64
    target_rate: r.TargetRate = 0.001


SPEC = AlgorithmSpec("ddpg", DDPGConfig, "zerobeast.rl.algos.ddpg.algorithm:DDPG")
