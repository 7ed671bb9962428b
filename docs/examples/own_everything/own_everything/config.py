"""Settings of the algorithm, the network and the environments. No torch: every service reads them."""

from __future__ import annotations

from zerobeast.common.settings import AlgorithmSpec, EnvConfig, NetConfig, setting
from zerobeast.rl.algos.ppo.config import PPOConfig


class AnnealedPPOConfig(PPOConfig):
    """PPO's settings and presets; `entropy_cost` is the weight of the bonus in the end."""

    first_entropy_cost: float = setting(0.03, "weight of the entropy bonus at first", ge=0)

    def entropy_cost_at(self, done: float) -> float:
        """The weight once this share of the run's steps is done."""
        return self.first_entropy_cost + min(1.0, done) * (self.entropy_cost - self.first_entropy_cost)


class PointConfig(EnvConfig):
    """Which environment, and how long its episodes are."""

    steps: int = setting(40, "steps after which an episode is truncated", ge=1)


class EntitiesConfig(NetConfig):
    """The network."""

    heads: int = setting(2, "heads of the attention, which divide net.hidden_size", ge=1)


SPEC = AlgorithmSpec("annealed_ppo", AnnealedPPOConfig, "own_everything.algorithm:AnnealedPPO")
