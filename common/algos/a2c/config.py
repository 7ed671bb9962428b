"""Settings of A2C."""

from __future__ import annotations

from zerobeast.common.algos import settings as s
from zerobeast.common.settings.section import Section


class A2CConfig(Section):
    """Advantage actor-critic. Sources: the defaults of OpenAI Baselines' a2c, where nothing else is said."""

    discount: s.Discount = 0.99
    trace_decay: s.TraceDecay = 1.0  # n-step returns, as in the paper; below 1 GAE(lambda)
    entropy_cost: s.EntropyCost = 0.01
    baseline_cost: s.BaselineCost = 0.5
    reward_clipping: s.RewardClipping = "none"
    reward_scale: s.RewardScale = 1.0
    normalize_advantages: s.NormalizeAdvantages = False
    reduction: s.Reduction = "mean"
    optimizer: s.Optimizer = "rmsprop_tf"
    learning_rate: s.LearningRate = 7e-4
    schedule: s.Schedule = "linear"
    alpha: s.Alpha = 0.99
    momentum: s.Momentum = 0.0
    epsilon: s.Epsilon = 1e-5
    max_grad_norm: s.MaxGradNorm = 0.5
