"""The whole description of a run.

It is one YAML file (`runs/<name>/config.yaml`), one set of flags (`--learner.batch_size 32`) and one set of environment
variables (`BEAST_LEARNER__BATCH_SIZE=32`). Every service reads the same tree and uses its part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from zerobeast.common.algos.registry import ALGORITHMS, Algorithms
from zerobeast.common.settings.run import Run
from zerobeast.common.settings.section import setting

if TYPE_CHECKING:
    AlgoName = str
else:
    AlgoName = Literal[tuple(ALGORITHMS)]


class RunConfig(Algorithms, Run):
    """The settings of a run. Every algorithm has its section, under the name that `algo` uses."""

    algo: AlgoName = setting("impala", "algorithm")
