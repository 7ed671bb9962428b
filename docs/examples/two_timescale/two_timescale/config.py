"""Settings of the two-timescale actor-critic."""

from __future__ import annotations

from zerobeast.common.settings import AlgorithmSpec, setting
from zerobeast.rl import settings as s


class TwoTimescaleConfig(s.ActorCriticSettings):
    """A critic that learns faster than the actor (Konda & Tsitsiklis 2000). Values chosen on CartPole-v1."""

    trace_decay: s.TraceDecay = 0.95
    baseline_cost: s.BaselineCost = 1.0
    entropy_cost: s.EntropyCost = 0.01
    critic_learning_rate: float = setting(2e-3, "of the values, at the start", gt=0)
    learning_rate: s.LearningRate = 1e-3
    epsilon: s.Epsilon = 1e-5
    max_grad_norm: s.MaxGradNorm = 1.0


SPEC = AlgorithmSpec("two_timescale", TwoTimescaleConfig, "two_timescale.algorithm:TwoTimescale")
