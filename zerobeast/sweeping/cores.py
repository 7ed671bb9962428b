"""Which cores, and which GPU, each of several runs at a time gets: no core is shared by two of them.

A core may have several hardware threads, which Linux calls CPUs. A run gets all CPUs of a core, unless there are to be
more runs at a time than cores. Equal runs get equally many, so that their rates can be compared.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from zerobeast.common.errors import ConfigError
from zerobeast.common.process.usage import cores
from zerobeast.plan.placement import NVIDIA

CPUS = Path("/sys/devices/system/cpu")
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

Place = tuple[int, ...]  #: CPUs, by number


def allocate_cores(parallel: int | None = None, cores_each: int | None = None) -> list[Place]:
    """The CPUs of each run at a time, of those that this process may use.

    Args:
      parallel: runs at a time; None: as many as there is room for.
      cores_each: cores of each; None: one, or if `parallel` is given as many as there are for each.

    Raises:
      ConfigError: there are not so many.
    """
    usable = os.sched_getaffinity(0)
    return divide_cores(_by_core(usable), max(1, int(cores())), parallel, cores_each)


def divide_cores(by_core: list[Place], most: int, parallel: int | None, cores_each: int | None) -> list[Place]:
    """As `allocate_cores`, for cores with these CPUs, of which `most` may be used."""
    cpus = [cpu for core in by_core for cpu in core][:most]
    threads = max(map(len, by_core))
    size = len(cpus) // parallel if parallel else min(threads, len(cpus))
    size -= size % threads if size > threads else 0
    size = cores_each * threads if cores_each else size
    count = parallel or len(cpus) // max(1, size)
    if not size or not count or count * size > len(cpus):
        wanted = f"{count or 1} at a time" + (f" with {cores_each} cores each" if cores_each else "")
        has = f"{len(cpus)} CPUs" + (f" in cores of {threads}" if threads > 1 else "")
        raise ConfigError(
            f"{wanted}: this process may only use {has}; expected fewer runs at a time or fewer cores per run"
        )
    return [tuple(cpus[first : first + size]) for first in range(0, count * size, size)]


def gpu_of(index: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that show the run at place `index` one GPU of those that there are; none if there are none."""
    own = (
        environ[VISIBLE_DEVICES].split(",")
        if VISIBLE_DEVICES in environ
        else [str(n) for n, _ in enumerate(NVIDIA.glob("*"))]
    )
    return {VISIBLE_DEVICES: own[index % len(own)]} if len(own) > 1 else {}


def _by_core(usable: set[int]) -> list[Place]:
    """These CPUs by core."""
    found: dict[str, list[int]] = {}
    for cpu in sorted(usable):
        core = str(cpu)
        with contextlib.suppress(OSError):  # a container that does not show it
            core = (CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
        found.setdefault(core, []).append(cpu)
    return [*map(tuple, found.values())]
