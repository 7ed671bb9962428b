"""Settings of SAC."""

from __future__ import annotations

from zerobeast.common.algos import replay_settings as r
from zerobeast.common.algos import settings as s
from zerobeast.common.settings.section import setting


class SACConfig(r.BoxSettings):
    """Soft actor-critic. Sources: Haarnoja et al. 2018b, appendix D, where nothing else is said."""

    temperature: float = setting(1.0, "alpha at the start: weight of entropy against rewards", gt=0)  # authors' code
    learn_temperature: bool = setting(True, "move it so that the policy has the target entropy")
    target_entropy: float | None = setting(
        None, "of actions in units of half their box, nats; by default minus the components of an action"
    )
    learning_rate: s.LearningRate = 3e-4
    batch_size: r.BatchSize = 256
    target_rate: r.TargetRate = 0.005
