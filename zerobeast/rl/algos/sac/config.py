"""Settings of SAC."""

from zerobeast.common.settings import AlgorithmSpec, setting
from zerobeast.rl import replay_settings as r
from zerobeast.rl import settings as s


class SACConfig(r.BoxSettings):
    """Soft actor-critic. Sources: Haarnoja et al. 2018b, appendix D, unless noted."""

    temperature: float = setting(1.0, "initial alpha: weight of the entropy relative to rewards", gt=0)  # authors' code
    learn_temperature: bool = setting(True, "adapt the temperature (alpha) to reach the target entropy")
    target_entropy: float | None = setting(
        None, "target entropy in nats, with actions scaled to [-1, 1]; empty: minus the number of action components"
    )
    learning_rate: s.LearningRate = 3e-4
    batch_size: r.BatchSize = 256
    target_rate: r.TargetRate = 0.005


SPEC = AlgorithmSpec("sac", SACConfig, "zerobeast.rl.algos.sac.algorithm:SAC")
