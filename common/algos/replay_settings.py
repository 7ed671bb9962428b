"""Settings of algorithms with a replay; `zerobeast.common.algos.settings` has those of all algorithms."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field

from zerobeast.common.algos.settings import Epsilon, LearnerSettings, MaxGradNorm, Schedule

# the replay
ReplaySize = Annotated[int, Field(description="agent steps that the replay holds, the newest", ge=1, le=10**10)]
ReplayCompression = Annotated[
    Literal["none", "zstd"],
    Field(description="of frames of bytes: zstd takes a tenth of the disk and of its cache, or less"),
]
ReplayMinSize = Annotated[int, Field(description="agent steps in it before the first update", ge=1, le=10**10)]
SamplesPerInsert = Annotated[
    float, Field(description="how often each agent step is learned from: transitions drawn for each one stored", gt=0)
]
BatchSize = Annotated[int, Field(description="transitions, or sequences, that an update draws", ge=1, le=65_536)]
UpdatesPerStep = Annotated[
    int, Field(description="updates between two looks at messages; the policy is published after them", ge=1, le=1000)
]
PriorityExponent = Annotated[
    float, Field(description="alpha: drawn in proportion to |TD error|^alpha; 0: all alike", ge=0, le=1)
]
ImportanceExponent = Annotated[float, Field(description="beta of the importance weights at the start", ge=0, le=1)]
ImportanceSchedule = Annotated[Literal["linear", "constant"], Field(description="of beta; linear: to 1 at total_steps")]
TargetPeriod = Annotated[int, Field(description="updates after which the target network follows", ge=1)]
TargetRate = Annotated[float, Field(description="tau: the share of the way that the target follows", gt=0, le=1)]
Steps = Annotated[
    int, Field(description="n: rewards that are summed before a value stands for the rest", ge=1, le=1000)
]

# action values
Double = Annotated[
    bool, Field(description="the network chooses the action that its target values (van Hasselt et al. 2016)")
]
Dueling = Annotated[bool, Field(description="a value of the state, and advantages of actions (Wang et al. 2016)")]
HeadSize = Annotated[
    int, Field(description="width of a hidden layer in each stream of the head; 0: none", ge=0, le=65_536)
]
Exploration = Annotated[
    Literal["annealed", "ladder"],
    Field(description="random actions: all environments less and less, or each its own share of Ape-X's ladder"),
]
ExplorationFinal = Annotated[float, Field(description="annealed: share of random actions, from 1 to this", ge=0, le=1)]
ExplorationSteps = Annotated[int, Field(description="annealed: agent steps until that is reached", ge=1, le=10**10)]
ExplorationPlaces = Annotated[
    int,
    Field(
        description="ladder: places of it, from a share of 0.4 to one of 0.4^8 (Horgan et al. 2018)", ge=1, le=65_536
    ),
]

# continuous actions
RandomSteps = Annotated[int, Field(description="agent steps until which actions are uniform over their box", ge=0)]
PolicyRate = Annotated[float, Field(description="learning rate of the policy, as a share of the critics'", gt=0)]


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


class BoxSettings(ReplaySettings):
    """Settings of algorithms that learn Q(s, a) of continuous actions; see `zerobeast.common.algos.box_learning`."""

    n_step: Steps = 1
    target_rate: TargetRate
    random_steps: RandomSteps = 10_000
    replay_size: ReplaySize = 1_000_000
    policy_rate: PolicyRate = 1.0
    schedule: Schedule = "constant"
    epsilon: Epsilon = 1e-8
    max_grad_norm: MaxGradNorm = 1e6  # not in the papers; far above what is usual

    def of_policy(self) -> Self:
        """These settings for the policy's optimiser."""
        return self.model_copy(update={"learning_rate": self.learning_rate * self.policy_rate})
