"""Settings of PPO with random network distillation. No torch: every service reads them."""

from zerobeast.common.settings import AlgorithmSpec, setting
from zerobeast.rl.algos.ppo.config import PPOConfig


class RNDConfig(PPOConfig):
    """PPO's settings and presets. Sources: Burda et al. 2018, arXiv:1810.12894, unless noted."""

    bonus: float = setting(0.5, "weight of the intrinsic reward, which has a deviation of 1; 0.5: table 5", ge=0)
    features: int = setting(64, "outputs of the networks that are compared; ours", ge=1, le=4096)


SPEC = AlgorithmSpec("rnd", RNDConfig, f"{__package__}.learning:RND")
