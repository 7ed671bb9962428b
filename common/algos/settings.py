"""Settings that several algorithms have: type, meaning and bounds stand here once, each algorithm's default in its own
`config.py`. Torch-free: every service reads the whole tree.

    class ImpalaConfig(Section):
        learning_rate: LearningRate = 6e-4
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Protocol

from pydantic import Field

# rewards and returns
Discount = Annotated[float, Field(description="gamma", ge=0, le=1)]
TraceDecay = Annotated[float, Field(description="lambda on the trace coefficients", ge=0, le=1)]
Clipping = Literal["abs_one", "none"]
RewardClipping = Annotated[Clipping, Field(description="abs_one: to [-1, 1], in the learner only")]
RewardScale = Annotated[float, Field(description="factor on rewards, in the learner only, before clipping", gt=0)]

# the loss
EntropyCost = Annotated[float, Field(description="weight of the entropy bonus", ge=0)]
BaselineCost = Annotated[float, Field(description="weight of the value loss", ge=0)]
PopArt = Annotated[
    bool, Field(description="learn values in units of their deviation, task by task (Hessel et al. 2018)")
]
ReductionKind = Literal["sum", "mean"]
Reduction = Annotated[ReductionKind, Field(description="over time and batch; the paper and TorchBeast sum")]
NormalizeAdvantages = Annotated[bool, Field(description="to mean 0, standard deviation 1 over a (mini)batch")]
RhoBar = Annotated[float, Field(description="V-trace clip on importance ratios, equation 1", gt=0)]
CBar = Annotated[float, Field(description="V-trace clip on trace coefficients, equation 1", gt=0)]

# batches that are kept
Batches = Annotated[int, Field(description="N: how many batches the circular buffer holds", ge=1, le=1000)]
Uses = Annotated[int, Field(description="K: how often each batch is learned from", ge=1, le=1000)]

# the optimiser
OptimizerKind = Literal["rmsprop", "rmsprop_tf", "adam"]
Optimizer = Annotated[OptimizerKind, Field(description="rmsprop_tf: TensorFlow 1's semantics")]
#: settings below that an optimiser does not have
UNUSED: Mapping[str, tuple[str, ...]] = {"adam": ("alpha", "momentum")}
LearningRate = Annotated[float, Field(description="at the start", gt=0)]
ScheduleKind = Literal["linear", "constant"]
Schedule = Annotated[ScheduleKind, Field(description="linear: to 0 at total_steps")]
Alpha = Annotated[float, Field(description="RMSProp's decay", ge=0, lt=1)]
Momentum = Annotated[float, Field(description="RMSProp's momentum", ge=0, lt=1)]
Epsilon = Annotated[float, Field(description="RMSProp's or Adam's", gt=0)]
MaxGradNorm = Annotated[float, Field(description="clip on the global norm of the gradient", gt=0)]


class RewardSettings(Protocol):
    """What `zerobeast.common.algos.returns` asks of an algorithm's settings."""

    @property
    def reward_clipping(self) -> Clipping: ...
    @property
    def reward_scale(self) -> float: ...


class LossSettings(Protocol):
    """What `zerobeast.common.algos.actor_critic` asks of an algorithm's settings."""

    @property
    def baseline_cost(self) -> float: ...
    @property
    def reduction(self) -> ReductionKind: ...


class OptimizerSettings(Protocol):
    """What `zerobeast.common.algos.gradient_descent` asks of an algorithm's settings."""

    @property
    def optimizer(self) -> OptimizerKind: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def schedule(self) -> ScheduleKind: ...
    @property
    def alpha(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def max_grad_norm(self) -> float: ...
