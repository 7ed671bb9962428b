"""Settings of C51."""

from collections.abc import Iterator
from typing import ClassVar

from zerobeast.common.settings import AlgorithmSpec, Relation, Run, setting
from zerobeast.rl import replay_settings as r
from zerobeast.rl import settings as s


class C51Config(r.QSettings):
    """Categorical DQN. Sources: Bellemare et al. 2017, section 5, unless noted."""

    double: r.Double = False
    atoms: int = setting(51, "number of atoms of the return distribution", ge=2, le=1_000)
    v_min: float = setting(-10.0, "value of the lowest atom, in units of scaled and clipped rewards")
    v_max: float = setting(10.0, "value of the highest atom, in units of scaled and clipped rewards")
    batch_size: r.BatchSize = 32
    samples_per_insert: r.SamplesPerInsert = 8.0  # an update every 4 steps
    target_period: r.TargetPeriod = 2_500  # in updates; DQN's 10,000 are agent steps
    learning_rate: s.LearningRate = 2.5e-4
    epsilon: s.Epsilon = 3.125e-4  # 0.01 / batch_size
    max_grad_norm: s.MaxGradNorm = 10.0  # Stooke & Abbeel 2019 (rlpyt)

    acts_by_values: ClassVar[bool] = False  # priorities are divergences

    def relations(self, name: str, run: Run) -> Iterator[Relation]:
        yield from super().relations(name, run)
        yield from r.order_atoms(name, self.v_min, self.v_max)


SPEC = AlgorithmSpec("c51", C51Config, "zerobeast.rl.algos.c51.algorithm:C51")
