"""How the cores of one machine are shared out among the services of a run: threads, never environments or batches.

What is learned thus does not depend on the machine. A setting that the user gave stays as it is; the others together
use the cores that are left and never more, since threads that wait for a core in turn are slower than fewer of them.
"""

from __future__ import annotations

from pathlib import Path

from zerobeast.common.config.tree import RunConfig
from zerobeast.common.runtime.usage import cores

NVIDIA = Path("/proc/driver/nvidia/gpus")
#: of the cost of an agent step with a convolutional network on CPUs, measured by `beast bench limit`
LEARNER_SHARE, BROKER_SHARE = 0.46, 0.22


def share_out(available: int, envs_per_group: int, *, gpu: bool) -> tuple[int, int, int]:
    """Threads of learner, broker and env-server (C++ threads, or worker processes) for this many cores.

    Args:
      available: cores.
      envs_per_group: environments that step side by side: more threads than these have nothing to do.
      gpu: learner and broker compute on one and need a core each to feed it.
    """
    learner = 1 if gpu else max(1, round(LEARNER_SHARE * available))
    broker = 1 if gpu else max(1, round(BROKER_SHARE * available))
    return learner, broker, min(envs_per_group, max(1, available - learner - broker))


def threads_of(config: RunConfig) -> dict[str, int]:
    """Setting -> threads of each service of a run on this machine: as given, or its share of the cores."""
    learner, broker, envserver = share_out(int(cores()), config.actor.envs_per_group, gpu=_uses_gpu(config))
    each = max(1, envserver // config.local.env_servers)
    if config.local.placement == "fused":
        broker = each = 1  # there are as many workers as cores, and more threads would wait for each other
    wanted = {
        "learner.threads": (config.learner.threads, learner),
        "broker.threads": (config.broker.threads, broker),
        "envserver.threads": (config.envserver.threads, each),
        "envserver.workers": (config.envserver.workers, each),
    }
    return {name: given or share for name, (given, share) in wanted.items()}


def workers_of(config: RunConfig) -> int:
    """Worker processes of a run on this machine."""
    return config.local.workers or int(cores())


def actors_of(config: RunConfig) -> int:
    """Actors of a run on this machine, wherever they are."""
    return workers_of(config) if config.local.placement == "fused" else config.local.actors


def thread_flags(config: RunConfig) -> list[str]:
    """`threads_of` as flags of a service."""
    return [text for name, count in threads_of(config).items() for text in (f"--{name}", str(count))]


def _uses_gpu(config: RunConfig) -> bool:
    """Whether both torch services will find one. Looking with torch would take seconds."""
    devices = {config.learner.device, config.broker.device}
    return "cpu" not in devices and NVIDIA.is_dir() and any(NVIDIA.iterdir())
