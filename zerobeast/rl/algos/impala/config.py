"""Settings of IMPALA."""

import math
from typing import ClassVar

from zerobeast.common.settings import AlgorithmSpec, setting
from zerobeast.common.wire import Space
from zerobeast.rl import settings as s


class ImpalaConfig(s.VTraceSettings):
    """V-trace actor-critic. Sources: Espeholt et al. 2018, table G.1, unless noted.

    The optimiser is TorchBeast's: torch's RMSProp with the table's numbers. The table is for TensorFlow 1, which adds
    epsilon inside the root: 0.01 there damps as much as 0.1 does outside, where torch adds it. So the defaults are ten
    times less damped than the paper's optimiser, which is `rmsprop_tf`; the preset `impala-atari` uses that one.
    """

    corrects_age: ClassVar[bool] = True
    entropy_target: float = setting(
        0.0, "target mean entropy in nats, reached by adapting entropy_cost (SEED RL); 0: entropy_cost is fixed"
    )
    baseline_cost: s.BaselineCost = 0.5
    popart: s.PopArt = False
    reward_clipping: s.RewardClipping = "abs_one"
    reduction: s.Reduction = "sum"
    rho_bar: s.RhoBar = 1.0
    c_bar: s.CBar = 1.0
    pg_rho_bar: float = setting(1.0, "V-trace: upper bound on importance ratios in the policy gradient", gt=0)
    trace_decay: s.TraceDecay = 1.0  # remark 2
    replay_share: float = setting(
        0.0,
        "share of old rollouts in each batch, drawn at random and added to the new ones; paper's section 5.2.2: 0.5",
        ge=0,
        le=0.9,
    )
    replay_rollouts: int = setting(1000, "capacity for old rollouts (FIFO); section 5.2.2: 10,000", ge=1, le=100_000)
    batches: s.Batches = 4  # as for IMPACT here; no effect if uses is 1
    uses: s.Uses = 1
    optimizer: s.Optimizer = "rmsprop"  # monobeast.py
    learning_rate: s.LearningRate = 6e-4
    alpha: s.Alpha = 0.99  # the code of the paper
    epsilon: s.Epsilon = 0.01  # monobeast.py; the table's number for another RMSProp, see above
    max_grad_norm: s.MaxGradNorm = 40.0

    @property
    def normalized_by(self) -> str:
        return "popart" if self.popart else ""

    @property
    def reused_by(self) -> str:
        return "replay_share" if self.replay_share else ""

    def live(self) -> tuple[str, ...]:
        """Without `entropy_cost` if that adapts itself."""
        return tuple(name for name in super().live() if name != "entropy_cost" or not self.entropy_target)

    def flaw(self, action: Space, name: str) -> str:
        if self.entropy_target and not self.entropy_cost:
            return f"{name}.entropy_cost 0.0: expected more than 0 with {name}.entropy_target, which adapts it"
        largest = sum(map(math.log, action.choices))
        real = any(array.kind == "box" for array in action.arrays)
        if self.entropy_target and not real and not 0 < self.entropy_target < largest:
            of = "the largest entropy of this environment's actions"
            return f"{name}.entropy_target {self.entropy_target}: expected between 0 and {largest:.4g}, {of}"
        return ""


SPEC = AlgorithmSpec("impala", ImpalaConfig, "zerobeast.rl.algos.impala.algorithm:Impala")
