"""Settings of algorithms with a replay; `zerobeast.rl.settings` has those of all algorithms."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from zerobeast.common.settings import AlgorithmSettings, Relation, Run, setting
from zerobeast.common.wire import ArraySpace, Space
from zerobeast.rl.settings import Epsilon, LearnerSettings, MaxGradNorm, Schedule

# the replay
ReplaySize = Annotated[int, Field(description="capacity of the replay, in agent steps", ge=1, le=10**10)]
ReplayMinSize = Annotated[
    int, setting(None, "agent steps in the replay before the first update", share=0.1, ge=1, le=10**10)
]
SamplesPerInsert = Annotated[
    float, Field(description="transitions sampled per agent step inserted: mean number of uses of each", gt=0)
]
BatchSize = Annotated[int, Field(description="transitions (R2D2: sequences) per update", ge=1, le=65_536)]
PriorityExponent = Annotated[
    float, Field(description="alpha: sample in proportion to |TD error|^alpha; 0: uniformly", ge=0, le=1)
]
ImportanceExponent = Annotated[float, Field(description="initial beta of the importance weights", ge=0, le=1)]
ImportanceSchedule = Annotated[
    Literal["linear", "constant"], Field(description="schedule of beta; linear: increases to 1 at total_steps")
]
TargetPeriod = Annotated[int, Field(description="updates between two updates of the target network", ge=1)]
TargetRate = Annotated[
    float, Field(description="tau: step size of target network updates; 1: copy the network", gt=0, le=1)
]
Steps = Annotated[
    int, Field(description="n of the n-step return: number of rewards before the bootstrap value", ge=1, le=1000)
]

# action values
Double = Annotated[
    bool,
    Field(description="the network selects the next action, the target network values it (van Hasselt et al. 2016)"),
]
Dueling = Annotated[bool, Field(description="dueling head: state value plus action advantages (Wang et al. 2016)")]
HeadSize = Annotated[
    int, Field(description="width of the hidden layer in each stream of the head; 0: no hidden layer", ge=0, le=65_536)
]
Exploration = Annotated[
    Literal["annealed", "ladder"],
    Field(description="epsilon-greedy; annealed: one epsilon for all environments; ladder: fixed epsilons (Ape-X)"),
]

# continuous actions
PolicyRate = Annotated[
    float, Field(description="learning rate of the policy, as a multiple of the critics' learning rate", gt=0)
]


PolicyDelay = Annotated[
    int, Field(description="d: critic updates per update of the policy and of the target networks", ge=1, le=1000)
]


def order_atoms(name: str, v_min: float, v_max: float) -> Iterator[Relation]:
    """A distribution over returns reaches from a lower return to a higher one."""
    if v_min >= v_max:
        low, high = f"{name}.v_min", f"{name}.v_max"
        yield Relation((low, high), f"{low} {v_min:g} with {high} {v_max:g}: expected v_min below v_max", v_min)


class ReplaySettings(LearnerSettings):
    """Settings of every algorithm with a replay; see `zerobeast.rl.learning.replay_learning`."""

    replay_size: ReplaySize = 100_000
    replay_compression: Literal["none", "zstd"] = setting(
        "none", "compression of byte or bit observations; zstd: a tenth of the disk space and page cache, or less"
    )
    replay_min_size: ReplayMinSize = 1_000
    samples_per_insert: SamplesPerInsert = 1.0
    batch_size: BatchSize = 32
    updates_per_step: int = setting(
        1, "consecutive updates before messages are handled and the weights are published", ge=1, le=1000
    )
    priority_exponent: PriorityExponent = 0.0
    importance_exponent: ImportanceExponent = 0.4
    importance_schedule: ImportanceSchedule = "linear"
    n_step: Steps = 1

    replays: ClassVar[bool] = True

    @property
    def samples_per_step(self) -> float:
        return self.samples_per_insert

    @property
    def per_item(self) -> int:
        """Transitions of what is drawn."""
        return 1

    def bound(self, now: AlgorithmSettings) -> tuple[str, ...]:
        """Those that the replay's file was made for: its size, and the length of rollouts."""
        return (*super().bound(now), "learner.unroll_length", ".replay_size")

    def relations(self, name: str, run: Run) -> Iterator[Relation]:
        """A replay must hold what an update draws, and it acknowledges rollouts before they are learned from."""
        steps = run.learner.unroll_length
        if self.n_step > steps and self.per_item == 1:  # returns of sequences end with them
            given = {f"{name}.n_step": self.n_step, "learner.unroll_length": steps}
            yield Relation.of(given, "at most that many, because a return ends in its rollout or in the next one")
        if run.deterministic:
            why = "because every rollout has to be learned from before the next one starts"
            yield Relation.of({"algo": name, "deterministic": True}, f"an algorithm without a replay, {why}")
        least = {"replay_min_size": self.replay_min_size, "batch_size": self.batch_size}
        if self.per_item > 1:
            least["sequence_length"] = self.per_item
        for path, value in least.items():
            if value > self.replay_size:
                given = {f"{name}.{path}": value, f"{name}.replay_size": self.replay_size}
                yield Relation.of(given, "at most that capacity")
        step = self.batch_size * self.updates_per_step * self.per_item
        if (run.total_steps - self.replay_min_size) * self.samples_per_insert < step:
            own = {f"{name}.{each}": getattr(self, each) for each in ("replay_min_size", "samples_per_insert")}
            expected = f"more, because the run ends before the first update, which needs {step} samples"
            yield Relation.of({"total_steps": run.total_steps, **own}, expected)


class QSettings(ReplaySettings):
    """Settings of every algorithm that learns action values; see `zerobeast.rl.algos.value.q_learning`."""

    drawing_explores: ClassVar[bool] = True
    actions: ClassVar[str] = "one discrete action"
    memory: ClassVar[bool] = False

    schedule: Schedule = "constant"
    double: Double = True
    dueling: Dueling = False
    head_size: HeadSize = 0
    target_period: TargetPeriod
    target_rate: TargetRate = 1.0
    exploration: Exploration = "annealed"
    exploration_final: float = setting(0.01, "annealed: final epsilon, starting from 1", ge=0, le=1)
    exploration_steps: int = setting(
        250_000, "annealed: agent steps until the final epsilon", share=0.25, ge=1, le=10**10
    )
    exploration_places: int = setting(
        32, "ladder: number of epsilons, from 0.4 to 0.4^8, one per environment (Horgan et al. 2018)", ge=1, le=65_536
    )

    acts_by_values: ClassVar[bool] = True  #: whether first priorities come from the values computed when acting

    @classmethod
    def takes(cls, action: Space) -> bool:
        return action.kind == "discrete"

    def bound(self, now: AlgorithmSettings) -> tuple[str, ...]:
        """With priorities, rows of the replay's file have those values."""
        assert isinstance(now, QSettings), "they are of the same algorithm"
        changed = (self.priority_exponent == 0) != (now.priority_exponent == 0)
        return (*super().bound(now), *([".priority_exponent"] if self.acts_by_values and changed else ()))


class BoxSettings(ReplaySettings):
    """Settings of algorithms that learn Q(s, a) of continuous actions; see `zerobeast.rl.algos.control`."""

    actions: ClassVar[str] = "one array of bounded continuous actions"
    memory: ClassVar[bool] = False
    sees_last_step: ClassVar[bool] = False
    dense_width: ClassVar[int] = 256  # Haarnoja et al. 2018b, appendix D
    batch_norms: ClassVar[bool] = True

    target_rate: TargetRate
    random_steps: int = setting(10_000, "agent steps with uniformly random actions at the start", share=0.1, ge=0)
    replay_size: ReplaySize = 1_000_000
    target_network: bool = setting(
        True, "compute targets with slow copies; false: with the networks themselves (CrossQ), for net.norm batch"
    )
    policy_rate: PolicyRate = 1.0
    policy_delay: PolicyDelay = 1
    atoms: int = setting(
        1, "number of atoms of the critics' return distributions; 1: critics estimate means", ge=1, le=1_000
    )
    v_min: float = setting(-5.0, "value of the lowest atom, in units of scaled and normalised rewards")
    v_max: float = setting(5.0, "value of the highest atom, in units of scaled and normalised rewards")
    normalize_returns: bool = setting(
        False, "divide rewards by the standard deviation of returns, or by a fifth of the largest if that is more"
    )
    schedule: Schedule = "constant"
    epsilon: Epsilon = 1e-8
    max_grad_norm: MaxGradNorm = 1e6  # not in the papers; far above what is usual

    @classmethod
    def takes(cls, action: Space) -> bool:
        return isinstance(action, ArraySpace) and action.kind == "box" and bool(action.bounded.all())

    def bound(self, now: AlgorithmSettings) -> tuple[str, ...]:
        """What the networks estimate, and which of them there are."""
        return (*super().bound(now), ".atoms", ".target_network", ".normalize_returns")

    def relations(self, name: str, run: Run) -> Iterator[Relation]:
        yield from super().relations(name, run)
        if self.atoms > 1:
            yield from order_atoms(name, self.v_min, self.v_max)
        if run.net.norm == "batch" and self.batch_size < 2 * run.learner.ranks:
            given = {f"{name}.batch_size": self.batch_size, "learner.ranks": run.learner.ranks}
            yield Relation.of(given, "at least 2 for each rank, because net.norm batch needs their deviation")

    def of_policy(self) -> Self:
        """These settings for the policy's optimiser."""
        own = {"learning_rate": self.learning_rate * self.policy_rate}
        return self if self.policy_rate == 1.0 else self.model_copy(update=own)

    def live(self) -> tuple[str, ...]:
        """None if the policy's optimiser has settings of its own, which are copies."""
        return super().live() if self.policy_rate == 1.0 else ()
