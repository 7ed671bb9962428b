"""Settings of IMPACT."""

from typing import ClassVar

from zerobeast.common.settings import AlgorithmSpec, setting
from zerobeast.rl import settings as s


class ImpactConfig(s.ActorCriticSettings):
    """Clipped surrogate against a target network. Sources: RLlib's APPO and its tuned Pong, unless noted.

    Both are by the paper's first author.
    """

    corrects_age: ClassVar[bool] = True
    batches: s.Batches = 4
    uses: s.Uses = 2
    rho: float = setting(2.0, "upper bound on the ratio of behaviour to target policy in the surrogate", gt=0)
    clip: s.Clip = 0.3
    rho_bar: s.RhoBar = 1.0
    c_bar: s.CBar = 1.0
    entropy_cost: s.EntropyCost = 0.01
    baseline_cost: s.BaselineCost = 1.0
    kl_cost: float = setting(
        0.0, "initial value of the adaptive weight of the penalty KL(target || policy); 0: no penalty", ge=0
    )
    kl_target: float = setting(0.04, "aim of the adaptive weight: mean KL over a target network's lifetime", gt=0)
    normalize_advantages: s.NormalizeAdvantages = False
    learning_rate: s.LearningRate = 5e-4
    epsilon: s.Epsilon = 1e-5  # as for PPO here
    max_grad_norm: s.MaxGradNorm = 10.0


SPEC = AlgorithmSpec("impact", ImpactConfig, "zerobeast.rl.algos.impact.algorithm:Impact")
