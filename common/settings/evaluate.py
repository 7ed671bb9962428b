"""Settings of evaluations, and when they are due."""

from __future__ import annotations

from typing import Literal

from zerobeast.common.settings.facts import About
from zerobeast.common.settings.guards import ENVIRONMENT
from zerobeast.common.settings.section import LIMIT, Section, setting
from zerobeast.common.wire.seeds import MAX_ENV_SEED


class EvaluateConfig(Section):
    """Evaluation of the policy in whole episodes, during training if requested, and afterwards."""

    about = About.FILES

    times: int = setting(0, "number of evenly spaced evaluations during training; 0: none", ge=0, le=10_000)
    every_steps: int = setting(
        0, "agent steps between evaluations, instead of evaluate.times; 0: use evaluate.times", ge=0, le=LIMIT
    )
    episodes: int = setting(10, "episodes per evaluation", ge=1, le=1_000_000)
    levels: str = setting(
        "",
        "environments to evaluate in, comma-separated: names of levels, suffixes of the run's ids, or other ids; "
        "empty: those of the run",
        decides=ENVIRONMENT,
        shapes=True,
    )
    seed: int | None = setting(
        None, "seed of environments and actions; empty: derived from the run's seed", ge=0, le=MAX_ENV_SEED
    )
    actions: Literal["greedy", "sampled"] = setting(
        "greedy",
        "how the policy acts outside training; greedy: the most likely or best action; sampled: drawn, as in training",
    )
    max_steps: int = setting(
        30_000,
        "maximum agent steps per episode; longer episodes are cut off and counted as bounded",
        ge=1,
        le=LIMIT,
        about=About.LEARNING,
    )
    video_every: int = setting(0, "record a video in every Nth evaluation; 0: none", ge=0, le=10_000)

    @property
    def greedy(self) -> bool:
        """Whether policies take the likeliest or best actions."""
        return self.actions == "greedy"

    def next_step(self, steps: int, total_steps: int) -> int | None:
        """The agent step of the first evaluation after `steps`; None: there is none."""
        if self.every_steps:
            return min((steps // self.every_steps + 1) * self.every_steps, total_steps) if steps < total_steps else None
        number = steps * self.times // total_steps + 1
        return -(-total_steps * number // self.times) if number <= self.times else None

    def due(self, steps: int, total_steps: int) -> int:
        """The agent step at which an evaluation that was made after `steps`, at the end of a batch, was due; or 0."""
        if steps >= total_steps or self.every_steps:
            return min(steps // self.every_steps * self.every_steps if self.every_steps else steps, total_steps)
        return -(-total_steps * (steps * self.times // total_steps) // self.times) if self.times else 0
