"""Settings of V-MPO."""

from __future__ import annotations

from zerobeast.common.algos import settings as s
from zerobeast.common.settings.section import setting


class VMPOConfig(s.ActorCriticSettings):
    """On-policy maximum a posteriori policy optimisation. Sources: Song et al. 2019, where nothing else is said."""

    trace_decay: s.TraceDecay = 1.0  # n-step returns, as in the paper; below 1 GAE(lambda)
    target_period: int = setting(10, "T_target: updates until the policy that acts follows", ge=1, le=1_000_000)
    eta: float = setting(1.0, "temperature of the weights of actions, at the start", gt=0)
    eta_limit: float = setting(0.1, "epsilon_eta: what the temperature holds their KL from uniform to", gt=0)
    kl_weight: float = setting(1.0, "alpha at the start: weight of KL(policy that acted || policy); 0: none", ge=0)
    kl_limit: float = setting(0.01, "epsilon_alpha: limit on it, for choices", gt=0)
    kl_mean_limit: float = setting(0.01, "epsilon_alpha: likewise for the means of real actions", gt=0)
    kl_std_limit: float = setting(5e-5, "epsilon_alpha: likewise for their standard deviations", gt=0)
    multiplier_rate: float = setting(
        1e-2, "learning rate of eta and alpha, constant, in an Adam of their own", gt=0
    )  # Stoix; in the paper they share the policy's
    baseline_cost: s.BaselineCost = 1.0
    popart: s.PopArt = False
    learning_rate: s.LearningRate = 1e-4
    schedule: s.Schedule = "constant"
    epsilon: s.Epsilon = 1e-8  # TensorFlow's default
    max_grad_norm: s.MaxGradNorm = 40.0  # not in the paper; far above what is usual
