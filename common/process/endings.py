"""How a process has ended, in words, and whether the kernel's OOM killer may have ended it."""

import contextlib
import signal
from collections.abc import Mapping
from pathlib import Path

#: counters of the OOM killer: of a container, by version 2 and 1 of control groups, or else of the machine
COUNTERS = {
    Path("/sys/fs/cgroup/memory.events"): "in its control group",
    Path("/sys/fs/cgroup/memory/memory.oom_control"): "in its control group",
    Path("/proc/vmstat"): "on this machine",
}


def oom_kills() -> dict[str, int]:
    """How many processes the kernel has ended so far for lack of memory, by place; empty if unknown."""
    for file, place in COUNTERS.items():
        with contextlib.suppress(OSError, ValueError, KeyError):
            return {place: int(dict(line.split() for line in file.read_text().splitlines())["oom_kill"])}
    return {}


def how_it_ended(code: int, before: Mapping[str, int]) -> str:
    """How a process has ended that nobody here has killed: "exit code 1" or "killed by ...".

    Args:
      code: its exit code; negative: number of the signal.
      before: `oom_kills` when it began.
    """
    if code >= 0:
        return f"exit code {code}"
    if code != -signal.SIGKILL:
        return f"killed by {signal_name(-code)}"
    killed = f"killed by {signal_name(-code)} (signal 9)"
    for place, count in oom_kills().items():
        if (more := count - before.get(place, count)) > 0:
            return f"{killed}, probably out of memory: the kernel's OOM killer has ended {more} {place} since it began"
    return f"{killed}: out of memory, or `kill -9` or `docker kill`"


def signal_name(number: int) -> str:
    """SIGKILL for 9, and so on."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
