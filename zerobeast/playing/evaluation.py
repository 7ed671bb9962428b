"""What an evaluation found: whole episodes of one policy in one environment, and statistics over them."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zerobeast.results.statistics import iqm


@dataclass(frozen=True)
class Evaluation:
    """Whole episodes of a policy."""

    env: str  #: id of the environment
    returns: list[float]  #: of each episode, undiscounted and unclipped, in the order in which they ended
    lengths: list[int]  #: of each episode, in agent steps
    deterministic: bool  #: whether the likeliest or best actions were taken, or drawn ones
    seed: int
    frame_skip: int  #: env frames of an agent step
    agent_steps_trained: int
    #: mean over the episodes whose last info has a number of that name
    infos: Mapping[str, float] = field(default_factory=dict)
    bounded: int = 0  #: episodes that were cut off at the bound of steps
    lost: int = 0  #: episodes that the environment failed in, and that were played again
    lost_to: str = ""  #: why the newest of them was

    @property
    def mean(self) -> float:
        """The mean of the returns."""
        return statistics.fmean(self.returns)

    @property
    def std(self) -> float:
        """The standard deviation of the returns."""
        return statistics.pstdev(self.returns)

    @property
    def stderr(self) -> float | None:
        """The standard error of the mean, from the sample's standard deviation; None for a single episode."""
        n = len(self.returns)
        return statistics.stdev(self.returns) / math.sqrt(n) if n > 1 else None

    @property
    def iqm(self) -> float:
        """The mean of the middle half of the returns (interquartile mean, Agarwal et al. 2021)."""
        return float(iqm(self.returns))

    @property
    def length(self) -> float:
        """The mean length in agent steps."""
        return statistics.fmean(self.lengths)

    def row(self) -> dict[str, Any]:
        """A row of `zerobeast.common.files.evaluations`, but for what is known of the run alone."""
        return {
            "agent_steps": self.agent_steps_trained,
            "env_frames": self.agent_steps_trained * self.frame_skip,
            "env": self.env,
            "actions": "greedy" if self.deterministic else "sampled",
            "seed": self.seed,
            "episodes": len(self.returns),
            "bounded": self.bounded,
            "lost": self.lost,
            "mean_return": self.mean,
            "stderr_return": self.stderr,
            "iqm_return": self.iqm,
            "min_return": min(self.returns),
            "max_return": max(self.returns),
            "mean_length": self.length,
            **{f"info/{name}": value for name, value in self.infos.items()},
            "returns": self.returns,
            "lengths": self.lengths,
        }
