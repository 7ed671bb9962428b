"""Settings of R2D2."""

from __future__ import annotations

from zerobeast.common.algos import settings as s
from zerobeast.common.settings.section import setting


class R2D2Config(s.ReplaySettings):
    """Recurrent Q-learning from prioritised sequences. Sources: Kapturowski et al. 2019, table 2, if not said otherwise.

    Where the paper has no number there is SEED RL's, from its script for Atari.
    """

    burn_in: int = setting(
        40, "steps before those to learn from, which bring the stored recurrent state up to date", ge=0, le=10_000
    )
    sequence_length: int = setting(80, "steps of a sequence to learn from, behind the burn-in", ge=2, le=10_000)
    n_steps: s.Steps = 5
    discount: s.Discount = 0.997
    value_rescaling: bool = setting(
        True, "learn values on the scale of h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x (Pohlen et al. 2018)"
    )
    target_period: s.TargetPeriod = 2500
    dueling: bool = setting(True, "values are a state's value plus its actions' advantages (Wang et al. 2016)")
    head_size: int = setting(512, "width of the layer in front of value and advantages; 0: none", ge=0, le=65_536)
    ladder: int = setting(
        8, "N: environments take turns on N levels of exploration, from epsilon 0.4 to 0.4^8", ge=1, le=65_536
    )
    priority_mix: float = setting(0.9, "eta: weight of a sequence's largest |TD error| against their mean", ge=0, le=1)
    priority_exponent: s.PriorityExponent = 0.9
    importance_exponent: s.ImportanceExponent = 0.6
    importance_schedule: s.ImportanceSchedule = "constant"
    batch_size: s.BatchSize = 64
    replay_size: s.ReplaySize = 4_000_000
    replay_min_size: s.ReplayMinSize = 400_000  # SEED: 5,000 unrolls of 80
    # SEED's replay_ratio 0.75: its unrolls are drawn so often, and have no step to learn from in common. Here two
    # sequences do that overlap by half; what counts is steps, so that each of them is drawn 0.375 times
    samples_per_insert: s.SamplesPerInsert = 0.75
    learning_rate: s.LearningRate = 1e-4
    schedule: s.Schedule = "constant"
    epsilon: s.Epsilon = 1e-3
    max_grad_norm: s.MaxGradNorm = 40.0  # Ape-X; SEED: 80
