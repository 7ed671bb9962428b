"""TorchBeast's flags (monobeast.py, polybeast.py and its two halves), so that its users can keep their commands.

Flags for algorithm settings apply to the algorithm that `algo` names. A setting whose flag is not given keeps this
project's default; `--preset torchbeast` gives TorchBeast's. `--num_actors` counts environments there, one to a process;
here they are spread evenly over the groups of the local actors, and the count is rounded up to fill them:

    actor.envs_per_group = ceil(num_actors / (local.actors * actor.env_groups))
    learner.window       = ceil(num_buffers / num_actors); the learner widens it if a batch needs more
"""

from collections.abc import Callable, Mapping
from math import ceil
from pathlib import Path

import yaml

MAX_COUNT = 4096 * 64
PRESET = "torchbeast"
ALGO = "<algo>"  #: section of the algorithm that the run uses

_FLAGS: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
SAME, NEEDLESS = _FLAGS["same"], _FLAGS["needless"]  #: names of settings; flags that set nothing here, and why
FIXED = {"disable_cuda": {"broker.device": "cpu", "learner.device": "cpu"}}  #: switches that stand for values
MODE = "mode"  #: train, or test, which `beast train` understands
COUNTS = ("num_actors", "num_buffers")  #: flags that `spread` turns into settings
FLAGS = (*SAME, *FIXED, MODE, *COUNTS, *NEEDLESS)


def spread(counts: Mapping[str, int], value: Callable[[str], int]) -> dict[str, int]:
    """The settings that follow from num_actors and num_buffers, if given; `value` looks up a setting."""
    groups = value("local.actors") * value("actor.env_groups")
    changes: dict[str, int] = {}
    envs = value("actor.envs_per_group")
    if "num_actors" in counts:
        changes["actor.envs_per_group"] = envs = ceil(counts["num_actors"] / groups)
    if "num_buffers" in counts:
        changes["learner.window"] = ceil(counts["num_buffers"] / counts.get("num_actors", groups * envs))
    return changes
