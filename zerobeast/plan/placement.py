"""How the services of a run are placed on one machine: in which processes, and with how many threads.

The settings give the number of env groups and of their environments, whatever processes they are in (`plan/machine.py`
chooses these for a new run). Threads use the cores, and no service gets more threads than there are cores, since
threads that take turns on a core are slower than fewer threads.
"""

import os
from pathlib import Path
from typing import NamedTuple

from zerobeast.common.config.preset import family_of
from zerobeast.common.config.settings_table import value_at
from zerobeast.common.process.roles import ROLES
from zerobeast.common.process.usage import cores, multiplies_bfloat16
from zerobeast.common.settings import RunConfig, torso_of

NVIDIA = Path("/proc/driver/nvidia/gpus")
#: what a machine has for a GPU that torch calls cuda, without loading torch: of NVIDIA, of AMD, of WSL
GPUS = (NVIDIA, *map(Path, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")))
#: shares of the cost of an agent step with a convolutional network on CPUs, measured by `beast bench limit`
LEARNER_SHARE, BROKER_SHARE = 0.46, 0.22
#: settings among which cores are shared out
THREADS = ("learner.threads", "broker.threads", "envserver.threads", "envserver.workers")
#: units of layers, in batches of as many rows, and threads that compute them faster than one; more were not measured
WIDE_LAYER, WIDE_LAYER_THREADS = 256, 2
SHORT_STEPS = 20_000  #: of runs for which one process is faster on two cores
CHEAP_FAMILIES = (
    "cartpole",
    "classic",
    "lunarlander",
)  #: families of environments that cost less than acting in them does


class Placement(NamedTuple):
    """Which processes a run has on this machine."""

    name: str  #: apart, fused, serial or serve
    processes: dict[str, int]  #: how many of each role, the learner's too
    env_groups: int  #: of each actor, in a worker or not
    threads: dict[str, int]  #: by setting
    why: str
    worker_cores: tuple[int, ...] = ()  #: cores that the workers stay on, one each; empty: any core

    @property
    def all_actors(self) -> int:
        """How many actors there are, in workers or not."""
        return sum(self.processes.get(role, 0) for role in ("actor", "worker", "serial"))

    def flags(self) -> list[str]:
        """Flags with which the services override settings of the run."""
        settings = {**self.threads, "actor.env_groups": self.env_groups}
        if self.name == "serial":
            settings["envserver.in_process"] = True
        return [text for name, value in settings.items() for text in (f"--{name}", str(value))]

    def core_of(self, worker: int) -> int | None:
        """The core that the worker of this number stays on; None: any."""
        return self.worker_cores[worker % len(self.worker_cores)] if self.worker_cores else None

    def __str__(self) -> str:
        envs = f"{self.env_groups} env group{'s' * (self.env_groups > 1)}"
        counts = {name: count for name, count in self.processes.items() if count}
        parts = ["one process"] * ("serial" in counts)
        parts += [f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items() if name != "serial"]
        actors = f"; actors of {envs}" if self.all_actors else ""
        return f"placement {self.name}, because {self.why}: {', '.join(parts)}{actors}"


def placement_of(config: RunConfig, available: int | None = None, *, gpu: bool | None = None) -> Placement:
    """How the services of a run are placed on this machine.

    Args:
      config: settings of the run.
      available: cores; None: as many as there are.
      gpu: whether learner and broker compute on a GPU; None: look for one.
    """
    available = max(1, int(cores())) if available is None else available  # a container may have half a core
    gpu = _uses_gpu(config) if gpu is None else gpu
    local, name, why = config.local, config.local.placement, "local.placement is set"
    if name == "auto":
        name, why = (
            ("apart", "a GPU runs inference for all actors")
            if gpu
            else ("serial", f"{config.total_steps:,} steps of a cheap environment finish sooner in one process")
            if _is_short(config)
            else ("fused", f"{available} core{'s' * (available > 1)} and no GPU")
        )
    apart, workers, groups = name == "apart", 0, config.actor.env_groups
    if name == "fused":
        workers, groups = (local.workers, groups) if local.workers else spread_groups(local.actors * groups, available)
    elif name == "serial":
        groups *= local.actors
    processes = {"learner": config.learner.ranks, "broker": int(apart or name == "serve")}
    processes |= {"envserver": local.env_servers * apart, "actor": local.actors * apart, "worker": workers}
    others = {role: 1 for role in ROLES if role not in processes}  # of every run, but hosted by none of ours
    return Placement(
        name,
        ({"serial": 1} if name == "serial" else processes) | others,
        env_groups=groups,
        threads=_threads(config, name, workers, available, gpu=gpu),
        why=why,
        worker_cores=_one_each(workers) if name == "fused" and not torso_of(config.net.torso).fills_a_core else (),
    )


def _is_short(config: RunConfig) -> bool:
    """Whether a run is over sooner in one process than the processes of other placements have started."""
    cheap = all(family_of(task) in CHEAP_FAMILIES for task in config.env.tasks)
    several = config.local.workers or config.learner.ranks > 1 or config.deterministic
    return cheap and config.total_steps <= SHORT_STEPS and not several


def groups_of(config: RunConfig) -> int:
    """How many env groups a run has on this machine, over all its actors."""
    placement = placement_of(config)
    return placement.all_actors * placement.env_groups


def spread_groups(groups: int, available: int) -> tuple[int, int]:
    """Number of workers, at most one for each core, and of groups in each, so that there are `groups` in all."""
    workers = next(count for count in range(min(groups, available), 0, -1) if groups % count == 0)
    return workers, groups // workers


def share_out(available: int, envs_per_group: int, *, gpu: bool, uses: float = 1.0) -> tuple[int, int, int]:
    """Threads of learner, broker and env-server (C++ threads, or worker processes) for this many cores.

    Args:
      available: cores.
      envs_per_group: environments that step in parallel: more threads than that have nothing to do.
      gpu: learner and broker compute on a GPU and need a core each to feed it.
      uses: how often each agent step is learned from.
    """
    cost = uses * LEARNER_SHARE + 1 - LEARNER_SHARE
    learner = 1 if gpu else max(1, round(uses * LEARNER_SHARE / cost * available))
    broker = 1 if gpu else max(1, round(BROKER_SHARE / cost * available))
    return learner, broker, min(envs_per_group, max(1, available - learner - broker))


def _one_each(workers: int) -> tuple[int, ...]:
    """The cores of the workers: all, if each worker can have one to itself, apart from what the learner takes of it."""
    usable = sorted(os.sched_getaffinity(0))
    return tuple(usable) if workers == len(usable) <= cores() else ()


def _threads(config: RunConfig, name: str, workers: int, available: int, *, gpu: bool) -> dict[str, int]:
    """Threads by setting: as given, or a share of the cores."""
    envs = config.actor.envs_per_group
    often = config.algorithm.samples_per_step
    uses = often if torso_of(config.net.torso).threads else 1.0
    learner, broker, steppers = share_out(available, envs, gpu=gpu, uses=uses)
    if _has_wide_layers(config):
        learner = max(learner, share_out(min(available, WIDE_LAYER_THREADS), envs, gpu=gpu, uses=often)[0])
    if name == "apart":  # threads are those of a session, and of an actor's env groups half step while half wait
        steppers = max(1, steppers // (config.local.actors * -(-config.actor.env_groups // 2)))
    elif name == "fused":  # the services of a worker take turns
        broker = max(1, (available - learner) // workers)
        steppers = min(envs, broker)
    elif name == "serial":
        learner = broker = steppers = 1
    learner = max(1, learner // config.learner.ranks)
    given = (value_at(config, path) for path in THREADS)
    shares = learner, broker, steppers, steppers
    return {path: one or share for path, one, share in zip(THREADS, given, shares, strict=True)}


def _has_wide_layers(config: RunConfig) -> bool:
    """Whether a learner is faster with a second thread: in float32, if its algorithm brings wide dense layers."""
    own, precision = config.algorithm.dense_width, config.learner.precision
    in_float32 = precision == "float32" or (precision == "auto" and not multiplies_bfloat16())
    return own > 0 and in_float32 and min(config.net.widths(own)) >= WIDE_LAYER


def _uses_gpu(config: RunConfig) -> bool:
    """Whether both torch services will find a GPU. Looking with torch would take seconds."""
    devices = {config.learner.device, config.broker.device}
    return "cpu" not in devices and NVIDIA.is_dir() and any(NVIDIA.iterdir())
