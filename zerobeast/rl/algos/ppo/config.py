"""Settings of PPO."""

from collections.abc import Iterator

from zerobeast.common.settings import AlgorithmSpec, Relation, Run, setting
from zerobeast.rl import settings as s


class PPOConfig(s.ActorCriticSettings):
    """Clipped surrogate. Sources: Schulman et al. 2017, table 3 (MuJoCo), unless noted."""

    trace_decay: s.TraceDecay = 0.95
    epochs: int = setting(10, "passes over each batch", ge=1, le=1000)
    minibatches: int = setting(32, "minibatches (one optimiser step each) per epoch on a full batch", ge=1, le=65_536)
    clip: s.Clip = 0.2
    value_clip: float = setting(
        0.0, "clip range for value updates (OpenAI Baselines: same as clip); 0: no clipping", ge=0
    )
    target_kl: float = setting(
        0.0, "KL divergence above which the remaining updates on a batch are skipped; 0: no limit", ge=0
    )
    vtrace: bool = setting(True, "correct advantages for policy_lag with V-trace (APPO); false: plain GAE")
    rho_bar: s.RhoBar = 1.0
    c_bar: s.CBar = 1.0
    entropy_cost: s.EntropyCost = 0.0
    baseline_cost: s.BaselineCost = 0.5  # Huang et al. 2022, "The 37 implementation details of PPO"
    normalize_advantages: s.NormalizeAdvantages = True
    normalize_returns: bool = setting(False, "divide rewards by the standard deviation of returns (Huang et al. 2022)")
    learning_rate: s.LearningRate = 3e-4
    epsilon: s.Epsilon = 1e-5
    max_grad_norm: s.MaxGradNorm = 0.5

    @property
    def rescaled_by(self) -> str:
        return "normalize_returns" if self.normalize_returns else ""

    def live(self) -> tuple[str, ...]:
        return (*super().live(), "entropy_cost", "clip", "value_clip", "target_kl", "epochs")

    def relations(self, name: str, run: Run) -> Iterator[Relation]:
        """A batch cannot make more minibatches than it has rollouts (with a core) or steps (without)."""
        parts, rows, steps = self.minibatches, run.learner.batch_size, run.learner.unroll_length
        given = {f"{name}.minibatches": parts, "learner.batch_size": rows}
        if run.net.recurrent and parts > rows:
            yield Relation.of({**given, "net.core": run.net.core}, f"at most {rows}, because rollouts are not split")
        elif parts > rows * steps:
            yield Relation.of(
                {**given, "learner.unroll_length": steps}, f"at most {rows * steps}, the number of steps in a batch"
            )


SPEC = AlgorithmSpec("ppo", PPOConfig, "zerobeast.rl.algos.ppo.algorithm:PPO")
