"""What an installation and its machine are."""

import os
import platform
import shutil
import time
from pathlib import Path
from typing import Any

from zerobeast.common.extras import installed_versions, packages_of_extras
from zerobeast.common.process.hardware import cpu_model, installed_memory_bytes, instruction_sets
from zerobeast.common.process.usage import cores, file_limits
from zerobeast.version import __version__

Facts = dict[str, Any]  #: numbers, texts, lists of texts and None, by name

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - its size is read
PACKAGES = ("torch", "numpy", "pyzmq", "gymnasium")  #: whose versions matter most, if they are installed
CLOCK_S = 0.2  #: for which the clocks are compared


def describe_installation() -> Facts:
    """Versions; which extras have all of their packages, and which packages the other ones lack."""
    found = installed_versions()
    lacking = {extra: sorted(packages - found.keys()) for extra, packages in packages_of_extras().items()}
    return {
        "zerobeast": __version__,
        "python": platform.python_version(),
        **{name: found[name] for name in PACKAGES if name in found},
        "extras": [extra for extra, packages in lacking.items() if not packages],
        "extras not installed": [f"{extra} ({' '.join(packages)})" for extra, packages in lacking.items() if packages],
    }


def describe_machine() -> Facts:
    """What a run depends on: system, cores, instruction sets, memory, GPU, limits, clocks."""
    soft, hard = file_limits()
    return {
        "system": platform.platform(),
        "cpu": cpu_model(),
        "cores": cores(),
        "cores of the machine": os.cpu_count(),
        "instruction sets": instruction_sets(),
        "memory, MiB": installed_memory_bytes() >> 20,
        "shared memory, MiB": shutil.disk_usage(SHARED_MEMORY).total >> 20 if SHARED_MEMORY.is_dir() else None,
        "gpu": _gpu_name(),
        "open files": soft,
        "open files at most": hard,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "clock drift, ms/s": _measure_drift(),
    }


def _gpu_name() -> str | None:
    """The GPU that a run takes; None without torch or a GPU."""
    if "torch" not in installed_versions():
        return None
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _measure_drift() -> float:
    """Milliseconds per second by which the wall clock is faster than the one that only counts."""
    wall, steady = time.time(), time.monotonic()
    time.sleep(CLOCK_S)
    steady = time.monotonic() - steady
    return round(1000 * (time.time() - wall - steady) / steady, 1)
