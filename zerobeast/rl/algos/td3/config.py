"""Settings of TD3."""

from zerobeast.common.settings import AlgorithmSpec, setting
from zerobeast.rl import replay_settings as r
from zerobeast.rl.algos.ddpg.config import DDPGConfig


class TD3Config(DDPGConfig):
    """Twin delayed DDPG. Sources: Fujimoto et al. 2018, section 6.1 and appendix C, unless noted."""

    critics: int = setting(2, "number of critics; each target uses the smallest of their values", ge=1, le=16)
    policy_delay: r.PolicyDelay = 2
    target_noise: float = setting(
        0.2, "standard deviation of the noise on target actions, in units of half the action range", ge=0
    )
    target_noise_clip: float = setting(0.5, "c: bound on target-action noise, in units of half the action range", ge=0)
    policy_rate: r.PolicyRate = 1.0
    batch_size: r.BatchSize = 100
    target_rate: r.TargetRate = 0.005


SPEC = AlgorithmSpec("td3", TD3Config, "zerobeast.rl.algos.td3.algorithm:TD3")
