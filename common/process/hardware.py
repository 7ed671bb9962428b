"""What a machine is, by its own account: for benchmarks and reports of faults. For Linux."""

import os
import re
from pathlib import Path

from zerobeast.common.process.usage import PROC

CPUINFO = PROC / "cpuinfo"
#: of those that torch's kernels are written for, x86 before ARM
INSTRUCTION_SETS = ("avx", "avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "asimd", "sve", "bf16")


def cpu_model(cpuinfo: Path = CPUINFO) -> str | None:
    """The name that the CPU gives itself; None if the system does not tell."""
    found = re.search(r"^model name\s*:\s*(.+?)\s*$", _read(cpuinfo), re.MULTILINE)
    return found[1] if found else None


def instruction_sets(cpuinfo: Path = CPUINFO) -> list[str]:
    """Those of INSTRUCTION_SETS that the CPU has."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", _read(cpuinfo), re.MULTILINE)
    return [name for name in INSTRUCTION_SETS if found and name in found[1].split()]


def installed_memory_bytes() -> int:
    """Memory of the machine, whatever its container may use."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read(file: Path) -> str:
    return file.read_text() if file.exists() else ""
