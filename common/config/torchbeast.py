"""TorchBeast's flags (monobeast.py, polybeast.py and its two halves), so that its users bring the command they have.

Settings of the algorithm are those of the one that `algo` names. A flag that is not given keeps this project's default,
not TorchBeast's; `--preset torchbeast` gives those. `--num_actors` counts environments there, one to a process; here
they are spread evenly over the groups of the local actors, and the count is rounded up to fill them:

    actor.envs_per_group = ceil(num_actors / (local.actors * actor.env_groups))
    learner.window       = ceil(num_buffers / num_actors), at least what a batch of learner.batch_size needs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import NamedTuple

MAX_COUNT = 4096 * 64
PRESET = "torchbeast"
ALGO = "<algo>"  #: section of the algorithm that the run uses


class Same(NamedTuple):
    """Another name of a setting."""

    path: str


class Fixed(NamedTuple):
    """A switch that stands for values."""

    values: Mapping[str, str]


class Needless(NamedTuple):
    """Nothing to set."""

    reason: str


class Mode(NamedTuple):
    """train, or test, which `beast train` understands."""


class Count(NamedTuple):
    """Goes into `spread`."""


ONE_LOOP = "the learner is one loop; learner.threads is the number of its torch threads"
Meaning = Same | Fixed | Needless | Mode | Count

FLAGS: Mapping[str, Meaning] = {
    "xpid": Same("name"),
    "savedir": Same("root"),
    "batch_size": Same("learner.batch_size"),
    "unroll_length": Same("learner.unroll_length"),
    "use_lstm": Same("net.use_lstm"),
    "entropy_cost": Same(f"{ALGO}.entropy_cost"),
    "baseline_cost": Same(f"{ALGO}.baseline_cost"),
    "discounting": Same(f"{ALGO}.discount"),
    "reward_clipping": Same(f"{ALGO}.reward_clipping"),
    "learning_rate": Same(f"{ALGO}.learning_rate"),
    "alpha": Same(f"{ALGO}.alpha"),
    "momentum": Same(f"{ALGO}.momentum"),
    "epsilon": Same(f"{ALGO}.epsilon"),
    "grad_norm_clipping": Same(f"{ALGO}.max_grad_norm"),
    "disable_cuda": Fixed({"broker.device": "cpu", "learner.device": "cpu"}),
    "mode": Mode(),
    "num_actors": Count(),
    "num_buffers": Count(),
    "num_learner_threads": Needless(ONE_LOOP),
    "num_threads": Needless(ONE_LOOP),
    "num_inference_threads": Needless("the broker is one loop; broker.threads is the number of its torch threads"),
    "num_servers": Needless("one env-server hosts all environments; local.env_servers and envserver.workers add more"),
    "num_actions": Needless("the environment says how many actions it has"),
    "max_learner_queue_size": Needless("learner.window bounds what is under way"),
    "pipes_basename": Needless("every service has an endpoint, such as broker.endpoint"),
    "disable_checkpoint": Needless("a checkpoint is always kept; learner.checkpoint_every_s says how often"),
    "write_profiler_trace": Needless("the health page of each service says where its time goes"),
}


def spread(counts: Mapping[str, int], value: Callable[[str], int]) -> dict[str, int]:
    """What num_actors and num_buffers mean for the settings.

    Args:
      counts: those of the two that were given.
      value: looks up a setting as all layers but this have it.
    """
    groups = value("local.actors") * value("actor.env_groups")
    changes: dict[str, int] = {}
    envs = value("actor.envs_per_group")
    if "num_actors" in counts:
        changes["actor.envs_per_group"] = envs = ceil(counts["num_actors"] / groups)
    if "num_buffers" in counts:
        changes["learner.window"] = ceil(counts["num_buffers"] / counts.get("num_actors", groups * envs))
    return changes
