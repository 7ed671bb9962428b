"""Settings of R2D2."""

from collections.abc import Iterator
from typing import ClassVar

from zerobeast.common.settings import AlgorithmSpec, Relation, Run, setting
from zerobeast.rl import replay_settings as r
from zerobeast.rl import settings as s


class R2D2Config(r.QSettings):
    """Recurrent Q-learning from prioritised sequences. Sources: Kapturowski et al. 2019, table 2, unless
    noted.

    `samples_per_insert` is SEED RL's replay ratio, the number of times that each of its unrolls is drawn. They share
    no step to learn from, so each step is drawn as often as its unroll. Sequences here overlap: with
    `learner.unroll_length` T there is one for every T steps, and it is drawn T / sequence_length times as often as a
    step: 0.375 times with the published numbers.
    """

    memory: ClassVar[bool] = True
    burn_in: int = setting(
        40, "burn-in: steps before each sequence, which only refresh the stored recurrent state", ge=0, le=10_000
    )
    sequence_length: int = setting(80, "steps to learn from in each sequence, after the burn-in", ge=2, le=10_000)
    value_rescaling: bool = setting(
        True, "rescale values by h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x (Pohlen et al. 2018)"
    )
    priority_mix: float = setting(
        0.9, "eta: weight of the largest |TD error| in a sequence's priority; the mean has weight 1 - eta", ge=0, le=1
    )
    n_step: r.Steps = 5
    discount: s.Discount = 0.997
    dueling: r.Dueling = True
    head_size: r.HeadSize = 512  # SEED's network
    target_period: r.TargetPeriod = 2_500
    exploration: r.Exploration = "ladder"
    priority_exponent: r.PriorityExponent = 0.9
    importance_exponent: r.ImportanceExponent = 0.6
    importance_schedule: r.ImportanceSchedule = "constant"
    batch_size: r.BatchSize = 64
    replay_size: r.ReplaySize = 4_000_000
    replay_min_size: r.ReplayMinSize = 400_000  # SEED: 5,000 unrolls of 80
    samples_per_insert: r.SamplesPerInsert = 0.75
    learning_rate: s.LearningRate = 1e-4
    epsilon: s.Epsilon = 1e-3
    max_grad_norm: s.MaxGradNorm = 40.0  # Ape-X; SEED: 80

    @property
    def rescaled_by(self) -> str:
        return "value_rescaling" if self.value_rescaling else ""

    @property
    def per_item(self) -> int:
        return self.sequence_length

    def relations(self, name: str, run: Run) -> Iterator[Relation]:
        """A replay has recurrent states only where rollouts begin."""
        steps = run.learner.unroll_length
        if self.burn_in % steps:
            given = {f"{name}.burn_in": self.burn_in, "learner.unroll_length": steps}
            yield Relation.of(given, "a multiple, because recurrent states are stored only at the start of a rollout")
        if self.sequence_length < steps:
            given = {f"{name}.sequence_length": self.sequence_length, "learner.unroll_length": steps}
            yield Relation.of(
                given, "at least that many, otherwise steps at the end of rollouts are never learned from"
            )
        yield from super().relations(name, run)


SPEC = AlgorithmSpec("r2d2", R2D2Config, "zerobeast.rl.algos.r2d2.algorithm:R2D2")
