"""Settings of algorithms with a replay; `zerobeast.common.algos.settings` has those of all algorithms."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from zerobeast.common.algos.settings import Epsilon, LearnerSettings, MaxGradNorm, Schedule
from zerobeast.common.wire.spaces import ArraySpace, Space

# the replay
ReplaySize = Annotated[int, Field(description="capacity of the replay, in agent steps", ge=1, le=10**10)]
ReplayCompression = Annotated[
    Literal["none", "zstd"],
    Field(description="compression of uint8 frames; zstd needs a tenth of the disk and cache or less"),
]
ReplayMinSize = Annotated[int, Field(description="agent steps in the replay before the first update", ge=1, le=10**10)]
SamplesPerInsert = Annotated[
    float, Field(description="transitions drawn for each agent step stored: how often each is learned from", gt=0)
]
BatchSize = Annotated[int, Field(description="transitions (R2D2: sequences) drawn for an update", ge=1, le=65_536)]
UpdatesPerStep = Annotated[
    int, Field(description="updates in a row before messages are handled and the policy is published", ge=1, le=1000)
]
PriorityExponent = Annotated[
    float, Field(description="alpha: draw in proportion to |TD error|^alpha; 0: uniformly", ge=0, le=1)
]
ImportanceExponent = Annotated[float, Field(description="initial beta of the importance weights", ge=0, le=1)]
ImportanceSchedule = Annotated[
    Literal["linear", "constant"], Field(description="schedule of beta; linear: to 1 at total_steps")
]
TargetPeriod = Annotated[int, Field(description="updates between updates of the target network", ge=1)]
TargetRate = Annotated[float, Field(description="tau: step size of target network updates; 1: a copy", gt=0, le=1)]
Steps = Annotated[int, Field(description="n of the n-step return: rewards before the bootstrap value", ge=1, le=1000)]

# action values
Double = Annotated[
    bool,
    Field(description="the target network values the action that the network chooses (van Hasselt et al. 2016)"),
]
Dueling = Annotated[bool, Field(description="dueling head: state value plus action advantages (Wang et al. 2016)")]
HeadSize = Annotated[
    int, Field(description="width of the hidden layer in each stream of the head; 0: no hidden layer", ge=0, le=65_536)
]
Exploration = Annotated[
    Literal["annealed", "ladder"],
    Field(description="epsilon-greedy: annealed for all environments, or a ladder of fixed epsilons (Ape-X)"),
]
ExplorationFinal = Annotated[float, Field(description="annealed: final epsilon, from 1 at the start", ge=0, le=1)]
ExplorationSteps = Annotated[
    int, Field(description="annealed: agent steps until the final epsilon is reached", ge=1, le=10**10)
]
ExplorationPlaces = Annotated[
    int,
    Field(description="ladder: number of epsilons, from 0.4 to 0.4^8 (Horgan et al. 2018)", ge=1, le=65_536),
]

# continuous actions
RandomSteps = Annotated[int, Field(description="initial agent steps with uniformly random actions", ge=0)]
PolicyRate = Annotated[float, Field(description="learning rate of the policy as a multiple of the critics'", gt=0)]


class ReplaySettings(LearnerSettings):
    """Settings of every algorithm with a replay; see `zerobeast.common.algos.replay_learning`."""

    replay_size: ReplaySize = 100_000
    replay_compression: ReplayCompression = "none"
    replay_min_size: ReplayMinSize = 1_000
    samples_per_insert: SamplesPerInsert = 1.0
    batch_size: BatchSize = 32
    updates_per_step: UpdatesPerStep = 1
    priority_exponent: PriorityExponent = 0.0
    importance_exponent: ImportanceExponent = 0.4
    importance_schedule: ImportanceSchedule = "linear"


class QSettings(ReplaySettings):
    """Settings of every algorithm that learns action values; see `zerobeast.common.algos.q_learning`."""

    drawing_explores: ClassVar[bool] = True
    actions: ClassVar[str] = "one discrete action"
    memory: ClassVar[bool] = False

    schedule: Schedule = "constant"
    double: Double = True
    dueling: Dueling = False
    head_size: HeadSize = 0
    n_step: Steps = 1
    target_period: TargetPeriod
    target_rate: TargetRate = 1.0
    exploration: Exploration = "annealed"
    exploration_final: ExplorationFinal = 0.01
    exploration_steps: ExplorationSteps = 250_000
    exploration_places: ExplorationPlaces = 32

    @classmethod
    def takes(cls, action: Space) -> bool:
        return action.kind == "discrete"


class BoxSettings(ReplaySettings):
    """Settings of algorithms that learn Q(s, a) of continuous actions; see `zerobeast.common.algos.box_learning`."""

    actions: ClassVar[str] = "one array of real actions with bounds"
    memory: ClassVar[bool] = False
    convolutions: ClassVar[bool] = False

    n_step: Steps = 1
    target_rate: TargetRate
    random_steps: RandomSteps = 10_000
    replay_size: ReplaySize = 1_000_000
    policy_rate: PolicyRate = 1.0
    schedule: Schedule = "constant"
    epsilon: Epsilon = 1e-8
    max_grad_norm: MaxGradNorm = 1e6  # not in the papers; far above what is usual

    @classmethod
    def takes(cls, action: Space) -> bool:
        return isinstance(action, ArraySpace) and action.kind == "box" and bool(action.bounded.all())

    def of_policy(self) -> Self:
        """These settings for the policy's optimiser."""
        return self.model_copy(update={"learning_rate": self.learning_rate * self.policy_rate})
