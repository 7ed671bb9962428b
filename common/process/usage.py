"""What a process may use of the machine and what it does use, by its own account. For Linux."""

import contextlib
import ctypes
import functools
import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from zerobeast.common.errors import ConfigError

try:
    import resource  # here, as a process that has run out of files could not load it any more
except ImportError:  # Windows, on which clients run
    resource = None  # type: ignore[assignment]

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
AUTOGROUP = Path("/proc/self/autogroup")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PRESSURE = (CGROUP / "cpu.pressure", Path("/proc/pressure/cpu"))  #: of the container, with its quota; of the machine

# Each connection counts as an open file; a client of a plane has two. When a server on tcp runs out, new connections
# wait until others end, and existing ones carry on. On a unix socket libzmq 4.3.5 ends the process instead, so a run on
# one machine does not start if that could happen.
PREFERRED_FILES = 65_536  #: what a server asks for: enough for the two connections of each of 30,000 clients
MIN_FILES = 64  #: what a service needs for itself
WARNING_SHARE = 0.8  #: share of the limit above which a service warns
DESCRIPTORS_FOLDER = Path("/proc/self/fd")
MEMORY_PERIOD_S = 2.0


def cores(cgroup: Path = CGROUP) -> float:
    """Cores that this process may use: those that it may run on, or the quota of its container if that is smaller."""
    allowed = float(len(os.sched_getaffinity(0)))
    try:
        if (whole := cgroup / "cpu.max").exists():
            quota, period = whole.read_text().split()
        else:
            quota, period = ((cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        share = float(quota) / float(period)  # "max" raises a ValueError, -1 means no limit
    except (OSError, ValueError, ZeroDivisionError):
        return allowed
    return min(allowed, share) if share > 0 else allowed


def multiplies_bfloat16(cpuinfo: Path = PROC / "cpuinfo") -> bool:
    """Whether the CPU has instructions for it; without them it is emulated, tens of times slower than float32."""
    with contextlib.suppress(OSError):
        return re.search(r"\b((avx512_|amx_)?bf16|amx_tile)\b", cpuinfo.read_text()) is not None
    return False


def core_names(cgroup: Path = CGROUP) -> list[str]:
    """Names of these cores, which are the same in all containers of a machine; cores of a quota are its container's."""
    host, usable, ids = socket.gethostname(), cores(cgroup), sorted(os.sched_getaffinity(0))
    own = [f"{host} {number}" for number in range(max(1, int(usable)))] if usable < len(ids) else ids
    machine = host
    with contextlib.suppress(OSError, ValueError):
        machine = BOOT_ID.read_text()[:8]
    return [f"{machine} {core}" for core in own]


def cpu_pressure(places: Sequence[Path] = PRESSURE) -> float:
    """Share of the last 10 s in which processes waited for a core; estimated from the load if the kernel has no PSI."""
    for place in places:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return float(place.read_text().split("avg10=")[1].split()[0]) / 100
    present = os.cpu_count() or 1
    return 1 - present / max(os.getloadavg()[0], present)


def take_long_turns() -> None:
    """Keep this process and its children from interrupting others on wake-up, and from being interrupted so often.

    If more processes compute than there are cores, every switch loses cached data: with long turns the services train 2
    to 4 % faster on two cores. Does nothing if the kernel lacks this policy or does not allow it.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def stay_on(core: int | None) -> None:
    """Run only on this core from now on, if it exists: the process then finds its data still in the caches.

    With as many workers as cores, each on its own, two cores train Pong 3 to 10 % faster.
    """
    if core is not None:
        with contextlib.suppress(OSError):  # the core was taken away meanwhile
            os.sched_setaffinity(0, {core})


def give_way(niceness: int) -> None:
    """Let processes that others wait for run first, as this one could use every core all the time.

    Linux may divide the CPU among sessions before it looks at processes, so the session gives way too.
    """
    os.nice(niceness)
    with contextlib.suppress(OSError):
        AUTOGROUP.write_text(str(niceness))


def allow_files(needed: int = MIN_FILES, why: str = "this service") -> None:
    """Raise this process's own limit on open files to PLENTY, or as far as the system lets it.

    Raises:
      ConfigError: the system allows fewer than `needed`.
    """
    soft, hard = file_limits()
    if hard < needed:
        needs = f"{why} may need {needed:,} open files"
        raise ConfigError(f"{needs}, and this system allows a process {hard:,}: raise `ulimit -n`")
    if soft < min(PREFERRED_FILES, hard):
        limit = resource.RLIMIT_NOFILE
        resource.setrlimit(limit, (min(PREFERRED_FILES, hard), resource.getrlimit(limit)[1]))


def max_files() -> int:
    """How many files this process may have open."""
    return file_limits()[0]


def open_files() -> int:
    """How many files this process has open; 0 if unknown."""
    try:
        return os.stat(DESCRIPTORS_FOLDER).st_size or len(
            os.listdir(DESCRIPTORS_FOLDER)
        )  # since Linux 6.2 the size is the count: no file to open
    except OSError:
        return max_files() if DESCRIPTORS_FOLDER.exists() else 0


def file_limits() -> tuple[int, int]:
    """How many files this process may have open, and how many it may allow itself; PLENTY if there is no limit."""
    if resource is None:
        return PREFERRED_FILES, PREFERRED_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (PREFERRED_FILES if soft == resource.RLIM_INFINITY else soft), (
        PREFERRED_FILES if hard == resource.RLIM_INFINITY else hard
    )


class Usage:
    """CPU share between two calls, and memory: of the process, or of one of several services that take turns in it."""

    def __init__(self, now: float) -> None:
        self._at = now
        self._cpu_s = time.process_time()
        self._share = 0.0
        self._cores, self._core_names = cores(), core_names()
        self._services = 1
        self._own_s = 0.0

    def share(self, services: int) -> None:
        """From now on, count the CPU time passed to `add_cpu_time`, and an equal part of the memory of the process."""
        self._services, self._cpu_s = services, 0.0

    def add_cpu_time(self, cpu_s: float) -> None:
        """Add the CPU time of this service's turns."""
        self._own_s += cpu_s

    def measure(self, now: float) -> dict[str, Any]:
        """CPU seconds so far, cores in use since the last call, cores that it may use, memory, open files.

        The memory is that of the process and those below it; all else is its own.
        """
        cpu_s = time.process_time() if self._services == 1 else self._own_s
        if now > self._at:
            self._share = (cpu_s - self._cpu_s) / (now - self._at)
            self._at, self._cpu_s = now, cpu_s
        return {
            "cpu_s": round(cpu_s, 2),
            "cpu_share": round(self._share, 3),
            "cpus": self._cores,
            "cores": self._core_names,
            "cpu_pressure": round(cpu_pressure(), 3),
            "memory_bytes": memory_bytes() // self._services,
            "open_files": open_files(),
            "max_files": max_files(),
        }


def memory_bytes() -> int:
    """Memory of this process and of all that it and they have started: resident sets, shared pages in each of them.

    That of the others is read every MEMORY_PERIOD_S.
    """
    own = os.getpid()
    return _resident_bytes(own) + _descendant_bytes(own, int(time.monotonic() / MEMORY_PERIOD_S))


@functools.lru_cache(maxsize=1)
def _descendant_bytes(pid: int, _period: int) -> int:
    return sum(map(_resident_bytes, descendants(pid)))


def _resident_bytes(pid: int) -> int:
    try:
        return int((PROC / f"{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def descendants(pid: int) -> Iterator[int]:
    """All processes that descend from one, by the kernel's list of the children of each of its threads."""
    with contextlib.suppress(OSError):  # it has just ended, or no file can be opened
        for file in (PROC / f"{pid}/task").glob("*/children"):
            for child in file.read_text().split():
                yield int(child)
                yield from descendants(int(child))


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """Let this process reuse freed buffers instead of giving them back to the kernel.

    By default glibc maps every large allocation anew, and each of its pages faults on first use. An update allocates
    the same large activations every time: with 32 unrolls of 20 Atari steps that is a sixth of all training time. The
    process stays as large as its largest step. Does nothing with another C library.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library than glibc
        return
    if not mallopt(_MMAP_THRESHOLD, (1 << 31) - 1):  # the largest int
        mallopt(_MMAP_THRESHOLD, 32 << 20)  # the largest that glibc before 2.35 takes
    mallopt(_TRIM_THRESHOLD, -1)  # never: a batch of football planes frees more than the largest int at once
    mallopt(_ARENA_MAX, 1)  # other threads' arenas are too small for such tensors, and would map them after all
