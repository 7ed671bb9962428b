"""What a machine is, by its own account: for benchmarks and reports of faults. For Linux."""

import contextlib
import os
import platform
import re
from pathlib import Path

from zerobeast.common.process.usage import CGROUP, PROC

CPUINFO = PROC / "cpuinfo"
#: of those that torch's kernels are written for, x86 before ARM
INSTRUCTION_SETS = ("avx", "avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "asimd", "sve", "bf16")


def cpu_model(cpuinfo: Path = CPUINFO) -> str:
    """The name that the CPU gives itself; its architecture if the system does not tell, as on ARM."""
    found = re.search(r"^model name[ \t]*:[ \t]*(\S.*?)[ \t]*$", _read(cpuinfo), re.MULTILINE)
    return found[1] if found else platform.machine()


def instruction_sets(cpuinfo: Path = CPUINFO) -> list[str]:
    """Those of INSTRUCTION_SETS that the CPU has."""
    found = re.search(r"^(?:flags|Features)[ \t]*:(.*)$", _read(cpuinfo), re.MULTILINE)
    return [name for name in INSTRUCTION_SETS if found and name in found[1].split()]


def installed_memory_bytes() -> int:
    """Memory of the machine, whatever its container may use."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_memory_bytes(cgroup: Path = CGROUP) -> int:
    """Memory that this process may use: that of the machine, or the limit of its container if that is smaller."""
    for place in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max" means no limit
            return min(installed_memory_bytes(), int((cgroup / place).read_text()))
    return installed_memory_bytes()


def _read(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""
