"""Settings of advantage-weighted regression."""

from __future__ import annotations

from zerobeast.common.settings import AlgorithmSpec, setting
from zerobeast.rl import settings as s


class AWRConfig(s.ActorCriticSettings):
    """Imitation of the policy's own actions, better ones more. Sources: Peng et al. 2019 up to max_weight."""

    trace_decay: s.TraceDecay = 0.95
    temperature: float = setting(1.0, "beta: advantages, in units of their deviation, are divided by it", gt=0)
    max_weight: float = setting(20.0, "clip on the weight of an action", gt=0)
    baseline_cost: s.BaselineCost = 0.5  # from here on as for A2C, or chosen on CartPole-v1
    entropy_cost: s.EntropyCost = 0.0
    learning_rate: s.LearningRate = 5e-4
    epsilon: s.Epsilon = 1e-5
    max_grad_norm: s.MaxGradNorm = 1.0


SPEC = AlgorithmSpec("awr", AWRConfig, "awr.algorithm:AWR")
