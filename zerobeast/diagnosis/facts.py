"""What an installation and its machine are."""

import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from zerobeast.common.errors import BeastError
from zerobeast.common.extras import installed_versions, packages_of_extras
from zerobeast.common.process.hardware import cpu_model, installed_memory_bytes, instruction_sets, usable_memory_bytes
from zerobeast.common.process.usage import cores, file_limits
from zerobeast.version import __version__

Facts = dict[str, Any]  #: numbers, texts, lists of texts and None, by name

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - its size is read
PACKAGES = ("torch", "numpy", "pyzmq", "gymnasium")  #: whose versions matter most


def describe_installation() -> Facts:
    """Versions; which extras have all of their packages, and what the others lack; which variables are settings."""
    return read_facts(
        {
            "zerobeast": lambda: __version__,
            "python": platform.python_version,
            **{name: partial(_version_of, name) for name in PACKAGES},
            "extras": lambda: [name for name, packages in _lacks() if not packages],
            "extras not installed": lambda: [f"{name} ({' '.join(each)})" for name, each in _lacks() if each],
            "variables": lambda: sorted(name for name in os.environ if name.startswith("BEAST_")),
        }
    )


def describe_machine() -> Facts:
    """What a run depends on: system, cores, instruction sets, memory, GPU, limits, time."""
    return read_facts(
        {
            "system": platform.platform,
            "cpu": cpu_model,
            "cores": cores,
            "cores of the machine": os.cpu_count,
            "instruction sets": instruction_sets,
            "memory, MiB": lambda: usable_memory_bytes() >> 20,
            "memory of the machine, MiB": lambda: installed_memory_bytes() >> 20,
            "shared memory, MiB": lambda: shutil.disk_usage(SHARED_MEMORY).total >> 20,
            "gpu": _gpu_name,
            "open files": lambda: file_limits()[0],
            "open files at most": lambda: file_limits()[1],
            "time": lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
    )


def read_facts(readers: Mapping[str, Callable[[], Any]]) -> Facts:
    """What each of them returns; a text that begins with `unknown` in place of what cannot be read."""
    facts: Facts = {}
    for name, read in readers.items():
        try:
            facts[name] = read()
        except Exception as error:  # whatever is wrong with it, the others are read
            facts[name] = f"unknown: {explain(error)}"
    return facts


def explain(error: Exception) -> str:
    """Any exception in one line, with its kind if it is not ours."""
    text = " ".join(str(error).split())
    return text if isinstance(error, BeastError | ModuleNotFoundError) else f"{type(error).__name__}: {text}"


def _version_of(package: str) -> str | None:
    return installed_versions().get(package)


def _lacks() -> Iterator[tuple[str, list[str]]]:
    """Each extra, with those of its packages that are not installed."""
    found = installed_versions().keys()
    return ((extra, sorted(packages - found)) for extra, packages in packages_of_extras().items())


def _gpu_name() -> str | None:
    """The GPU that a run takes; None without torch or a GPU."""
    if not _version_of("torch"):
        return None
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None
