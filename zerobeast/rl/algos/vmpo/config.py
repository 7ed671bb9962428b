"""Settings of V-MPO."""

from typing import ClassVar

from zerobeast.common.settings import AlgorithmSpec, setting
from zerobeast.rl import settings as s


class VMPOConfig(s.ActorCriticSettings):
    """On-policy maximum a posteriori policy optimisation. Sources: Song et al. 2019, unless noted."""

    corrects_age: ClassVar[bool] = True
    trace_decay: s.TraceDecay = 1.0  # n-step returns, as in the paper; below 1 GAE(lambda)
    target_period: int = setting(10, "T_target: updates per replacement of the acting policy", ge=1, le=1_000_000)
    eta: float = setting(1.0, "initial eta: temperature of the advantage weights", gt=0)
    eta_limit: float = setting(0.1, "epsilon_eta: limit on the KL of the advantage weights from uniform weights", gt=0)
    kl_weight: float = setting(
        1.0, "initial alpha: weight of the KL(acting policy || policy) penalty; 0: no penalty", ge=0
    )
    kl_limit: float = setting(0.01, "epsilon_alpha: limit on the penalised KL of discrete actions", gt=0)
    kl_mean_limit: float = setting(0.01, "epsilon_alpha: limit on the penalised KL of continuous actions' means", gt=0)
    kl_std_limit: float = setting(
        5e-5, "epsilon_alpha: limit on the penalised KL of continuous actions' standard deviations", gt=0
    )
    multiplier_rate: float = setting(
        1e-2, "constant learning rate of eta and alpha, which have a separate Adam optimiser", gt=0
    )  # Stoix; in the paper they share the policy's
    baseline_cost: s.BaselineCost = 1.0
    popart: s.PopArt = False
    learning_rate: s.LearningRate = 1e-4
    schedule: s.Schedule = "constant"
    epsilon: s.Epsilon = 1e-8  # TensorFlow's default
    max_grad_norm: s.MaxGradNorm = 40.0  # not in the paper; far above what is usual

    @property
    def normalized_by(self) -> str:
        return "popart" if self.popart else ""


SPEC = AlgorithmSpec("vmpo", VMPOConfig, "zerobeast.rl.algos.vmpo.algorithm:VMPO")
