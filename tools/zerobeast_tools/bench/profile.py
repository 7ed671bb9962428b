"""CPU time of a training run by kind of code, sampled with Linux's `perf`.

The three necessary parts of a step appear as `emulator` and `tensors`; the rest is the overhead of the system.
"""

import re
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from zerobeast.common.errors import ConfigError
from zerobeast_tools.bench.figures import align_cells
from zerobeast_tools.bench.options import emit, parse_options
from zerobeast_tools.throwaway_run import ThrowawayRun, training

SAMPLES_PER_S = 199
ENDING_S = 30.0
#: part -> prefixes of the names of its code: shared objects, or perf's own names for what is not one
PARTS = {
    "emulator": ("_ale", "ale", "libale"),
    "tensors": ("[JIT]", "libtorch", "libc10", "libgomp", "libmkl", "libdnnl", "libopenblas", "libscipy_openblas"),
    "libc: copies": ("libc.so", "libc-", "libstdc++", "libm.so"),
    "ZeroMQ": ("libzmq", "_zmq", "libsodium"),
    "kernel": ("[kernel", "[vdso]", "[unknown]"),
    "Python": (),  # the interpreter and every other extension module
}
_LINE = re.compile(r"\s*([\d.]+)%\s+(\S.*?)\s*$")

Shares = dict[str, float]  #: part -> share of a core


def main(argv: list[str]) -> int:
    """`beast bench profile`.

    Raises:
      ConfigError: there is no perf.
    """
    options, _, flags = parse_options("profile", __doc__, argv, seconds=20.0, warmup=10.0)
    if shutil.which("perf") is None:
        raise ConfigError("beast bench profile needs perf: apt install linux-perf, or your system's name for it")
    with training(flags) as run, tempfile.TemporaryDirectory(prefix="beast-bench-") as folder:
        time.sleep(options.warmup)
        pids = {child.spec.status.stem: child.pid for child in run.children}
        start, before = time.monotonic(), _cpu_s(run)
        samples = _record(pids, options.seconds, Path(folder))
        spent, after = time.monotonic() - start, _cpu_s(run)
        profile = {name: _shares(path, (after[name] - before[name]) / spent) for name, path in samples.items()}
    emit(profile, format_profile(profile), options.json)
    return 0


def format_profile(profile: dict[str, Shares]) -> str:
    """A row for each service: how much of a core each part takes."""
    everywhere = {part: sum(shares.get(part, 0.0) for shares in profile.values()) for part in PARTS}
    rows = [["shares of a core", *PARTS, "all"]]
    for name, shares in [*profile.items(), ("all", everywhere)]:
        values = [*(shares.get(part, 0.0) for part in PARTS), sum(shares.values())]
        rows.append([name, *(f"{value:.3f}" for value in values)])
    return "\n".join(align_cells(rows, numbers=range(1, len(rows[0]))))


def part_of(code: str) -> str:
    """The part that a shared object, as perf names it, belongs to."""
    return next((part for part, names in PARTS.items() if code.startswith(names)), "Python")


def _cpu_s(run: ThrowawayRun) -> dict[str, float]:
    """CPU seconds of every service so far, by the name of its status file."""
    return {
        child.spec.status.stem: sum(float(child.page(role).get("cpu_s", 0.0)) for role in child.spec.statuses)
        for child in run.children
    }


def _record(pids: dict[str, int], seconds: float, folder: Path) -> dict[str, Path]:
    """Sample all processes at the same time; returns name -> file."""
    files = {name: folder / f"{name}.perf" for name in pids}
    commands = [
        f"perf record -q -F {SAMPLES_PER_S} -p {pid} -o {files[name]} -- sleep {seconds:g}".split()
        for name, pid in pids.items()
    ]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    for process in running:
        if process.wait(seconds + ENDING_S):
            raise ConfigError("perf record failed: it may need root, or kernel.perf_event_paranoid at 1 or less")
    return files


def _shares(samples: Path, cores: float) -> Shares:
    """Shares of a core by part, of a process that used this many cores."""
    command = ["perf", "report", "--stdio", "-q", "--sort", "dso", "-F", "overhead,dso", "-i", str(samples)]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, float] = defaultdict(float)
    for line in map(_LINE.match, report.splitlines()):
        if line is not None:
            found[part_of(line[2])] += float(line[1])
    whole = sum(found.values())
    return {part: cores * share / whole for part, share in found.items()} if whole else {}
