"""TorchBeast's flags (monobeast.py, polybeast.py and its two halves), so that its users can keep their commands.

Flags for algorithm settings apply to the algorithm that `algo` names. A setting whose flag is not given keeps this
project's default; `--preset torchbeast` gives TorchBeast's. `--num_actors` counts environments there, one to a process;
here they are spread evenly over the groups of the local actors, and the count is rounded up to fill them:

    actor.envs_per_group = ceil(num_actors / (local.actors * actor.env_groups))
    learner.window       = ceil(num_buffers / num_actors); the learner widens it if a batch needs more
"""

from collections.abc import Callable, Mapping
from math import ceil

MAX_COUNT = 4096 * 64
PRESET = "torchbeast"
ALGO = "<algo>"  #: section of the algorithm that the run uses

#: TorchBeast's names of settings
SAME = {
    "xpid": "name",
    "savedir": "root",
    "batch_size": "learner.batch_size",
    "unroll_length": "learner.unroll_length",
    "use_lstm": "net.use_lstm",
    "entropy_cost": f"{ALGO}.entropy_cost",
    "baseline_cost": f"{ALGO}.baseline_cost",
    "discounting": f"{ALGO}.discount",
    "reward_clipping": f"{ALGO}.reward_clipping",
    "learning_rate": f"{ALGO}.learning_rate",
    "alpha": f"{ALGO}.alpha",
    "momentum": f"{ALGO}.momentum",
    "epsilon": f"{ALGO}.epsilon",
    "grad_norm_clipping": f"{ALGO}.max_grad_norm",
}
FIXED = {"disable_cuda": {"broker.device": "cpu", "learner.device": "cpu"}}  #: switches that stand for values
MODE = "mode"  #: train, or test, which `beast train` understands
COUNTS = ("num_actors", "num_buffers")  #: flags that `spread` turns into settings
ONE_LOOP = "the learner is one loop; learner.threads is the number of its torch threads"
#: flags that set nothing here, and why
NEEDLESS = {
    "num_learner_threads": ONE_LOOP,
    "num_threads": ONE_LOOP,
    "num_inference_threads": "the broker is one loop; broker.threads is the number of its torch threads",
    "num_servers": "one env-server hosts all environments; local.env_servers and envserver.workers add more",
    "num_actions": "the environment determines the number of actions",
    "max_learner_queue_size": "learner.window bounds what is in flight",
    "pipes_basename": "every service has an endpoint, such as broker.endpoint",
    "disable_checkpoint": "a checkpoint is always kept; learner.checkpoint_every_s sets how often",
    "write_profiler_trace": "the health page of each service shows where its time goes",
}
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
