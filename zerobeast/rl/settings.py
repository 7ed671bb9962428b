"""Settings that several algorithms share: type, meaning and bounds are defined here once, with the defaults common to
most; all other defaults are in each algorithm's own `config.py`. Torch-free: every service reads the whole tree.

    class PPOConfig(ActorCriticSettings):
        learning_rate: LearningRate = 3e-4
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field

from zerobeast.common.settings import SCHEDULED, AlgorithmSettings, Linear, Run

# rewards and returns
Discount = Annotated[float, Field(description="gamma: discount factor", ge=0, le=1)]
TraceDecay = Annotated[float, Field(description="lambda: decay of the trace coefficients", ge=0, le=1)]
RewardClipping = Annotated[
    Literal["abs_one", "soft_asymmetric", "none"],
    Field(
        description="in the learner only; abs_one: to [-1, 1]; soft_asymmetric: to (-1.5, 5), with negative rewards "
        "times 0.3"
    ),
]
RewardScale = Annotated[float, Field(description="factor on rewards in the learner only, before clipping", gt=0)]

# the loss
EntropyCost = Annotated[float, Field(description="weight of the entropy bonus", ge=0), *SCHEDULED]
BaselineCost = Annotated[float, Field(description="weight of the value loss", ge=0), *SCHEDULED]
Clip = Annotated[float, Field(description="epsilon: clip range of the probability ratio", gt=0), *SCHEDULED]
PopArt = Annotated[bool, Field(description="PopArt: learn values normalised per task (Hessel et al. 2018)")]
Reduction = Annotated[
    Literal["sum", "mean"],
    Field(description="reduction of the loss over time and batch; sum: as in the IMPALA paper and TorchBeast"),
]
NormalizeAdvantages = Annotated[
    bool, Field(description="normalise advantages to mean 0 and standard deviation 1 per (mini)batch")
]
RhoBar = Annotated[float, Field(description="V-trace: clip on importance ratios (rho-bar, equation 1)", gt=0)]
CBar = Annotated[float, Field(description="V-trace: clip on trace coefficients (c-bar, equation 1)", gt=0)]

# batches that are kept
Batches = Annotated[int, Field(description="N: size of the circular buffer, in batches", ge=1, le=1000)]
Uses = Annotated[int, Field(description="K: number of times that each batch is used", ge=1, le=1000)]

# the optimiser
Optimizer = Annotated[
    Literal["rmsprop", "rmsprop_tf", "adam", "adamw", "radam"],
    Field(
        description="optimiser; rmsprop_tf: RMSProp with TensorFlow 1's semantics; adamw: with decoupled weight decay "
        "(Loshchilov & Hutter 2019); radam: rectified Adam (Liu et al. 2020)"
    ),
]
LearningRate = Annotated[float, Field(description="initial learning rate", gt=0), *SCHEDULED]
Schedule = Annotated[
    Literal["linear", "constant"], Field(description="learning rate schedule; linear: decay to 0 at total_steps")
]
Alpha = Annotated[float, Field(description="decay of RMSProp's running average", ge=0, lt=1)]
Momentum = Annotated[float, Field(description="RMSProp's momentum", ge=0, lt=1)]
WeightDecay = Annotated[float, Field(description="weight decay of AdamW", ge=0, le=1)]
Epsilon = Annotated[float, Field(description="epsilon of RMSProp or of Adam and its kin", gt=0)]
MaxGradNorm = Annotated[float, Field(description="maximum global norm of the gradient", gt=0)]


class LearnerSettings(AlgorithmSettings):
    """Settings of every algorithm here: those of the optimiser (`rl.learning.gradient_descent`) and of rewards."""

    optimizer: Optimizer = "adam"
    learning_rate: LearningRate
    schedule: Schedule = "linear"
    alpha: Alpha = 0.99
    momentum: Momentum = 0.0
    weight_decay: WeightDecay = 0.01
    epsilon: Epsilon
    max_grad_norm: MaxGradNorm
    discount: Discount = 0.99
    reward_clipping: RewardClipping = "none"
    reward_scale: RewardScale = 1.0

    def at(self, done: Any) -> Self:
        """The same with what schedules give when a share of the run's steps, a number or tensor [], is done."""
        now = {name: value.at(done) for name, value in self if isinstance(value, Linear)}
        return self.model_copy(update=now) if now else self

    def learning_rate_at(self, agent_steps: int, total_steps: int) -> float:
        """Constant, or decreasing linearly from the configured value to 0 at the run's last step, or as given."""
        if isinstance(self.learning_rate, Linear):
            return self.learning_rate.at(agent_steps / total_steps)
        left = 1.0 if self.schedule == "constant" else max(0.0, 1.0 - agent_steps / total_steps)
        return self.learning_rate * left

    def live(self) -> tuple[str, ...]:
        return ("learning_rate", "schedule", "max_grad_norm")

    def unused_settings(self) -> dict[str, tuple[str, str]]:
        users = {"alpha": ("rmsprop", "rmsprop_tf"), "momentum": ("rmsprop", "rmsprop_tf"), "weight_decay": ("adamw",)}
        return {
            name: ("optimizer", f"which does not use {name}; {used_by[0]} does")
            for name, used_by in users.items()
            if self.optimizer not in used_by
        }

    def bound(self, _now: AlgorithmSettings) -> tuple[str, ...]:
        return (".optimizer",)

    def jump(self, name: str, run: Run, before: AlgorithmSettings, total_before: int, steps: int) -> str:
        assert isinstance(before, LearnerSettings), "they are of the same algorithm"
        was, now = before.learning_rate_at(steps, total_before), self.learning_rate_at(steps, run.total_steps)
        if self.schedule == "constant" or isinstance(self.learning_rate, Linear) or was == now:
            return ""
        asked = self.learning_rate if self.learning_rate != before.learning_rate else now
        falls = f"continues at {now:.3g} and falls to 0 at total_steps {run.total_steps}"
        holds = f"--{name}.schedule=constant --{name}.learning_rate={asked:.3g} holds it"
        return f"{name}.schedule linear: the learning rate, {was:.3g} before, {falls}; {holds}"


class ActorCriticSettings(LearnerSettings):
    """Settings of every actor-critic."""

    trace_decay: TraceDecay = 1.0
    baseline_cost: BaselineCost

    def live(self) -> tuple[str, ...]:
        return (*super().live(), "trace_decay", "baseline_cost")


class VTraceSettings(ActorCriticSettings):
    """Further settings that `policy_gradient.vtrace_loss` of `rl.algos` reads; `rho_bar` and its like are optional."""

    entropy_cost: EntropyCost = 0.01
    normalize_advantages: NormalizeAdvantages = False
    reduction: Reduction

    def live(self) -> tuple[str, ...]:
        return (*super().live(), "entropy_cost")
