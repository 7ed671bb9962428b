"""Run all benchmarks one after the other, and print their results and goals in one table.

Nothing else should run at the same time. Each benchmark runs in a separate process, so that none disturbs the next.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from zerobeast.common.process.terminal import write
from zerobeast_tools.bench.figures import Figure
from zerobeast_tools.bench.options import emit_figures

#: these take minutes or install packages, so a short report leaves them out
LONG_BENCHMARKS = ("peers", "peers --work dqn", "peers --work sac", "memory")
COMMANDS = (
    "train",
    "train --net.torso deep",
    "train --net.core lstm",
    "train --env CartPole-v1 --actor.envs_per_group 64 --learner.batch_size 32",
    *("latency", "keys", "scale", "broker", "steps", "remote", "rollouts", "weights", "replay", "waste"),
    *LONG_BENCHMARKS,
)


def main(argv: list[str]) -> int:
    """`beast bench all`; exit code 1 if a benchmark failed."""
    parser = argparse.ArgumentParser(prog="beast bench all", description=__doc__, allow_abbrev=False)
    parser.add_argument("--short", action="store_true", help="skip peers and memory, which take half an hour")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args(argv)
    figures: list[Figure] = []
    failed = []
    for command in COMMANDS:
        if options.short and command in LONG_BENCHMARKS:
            continue
        write(f"beast bench {command}", sys.stderr)
        result = _run_benchmark(command)
        if result is None:
            failed.append(command)
        else:
            figures += [Figure(**each) for each in result["figures"] if each["goal"]]
    emit_figures(figures, options.json, "\n".join(f"beast bench {each}: failed, see above" for each in failed))
    return 1 if failed else 0


def _run_benchmark(command: str) -> Any:
    """What a benchmark writes as JSON, or None if it failed."""
    with tempfile.TemporaryDirectory(prefix="beast-bench-") as folder:
        out = Path(folder) / "result.json"
        argv = [sys.executable, "-P", "-m", "zerobeast", "bench", *command.split(), "--json", str(out)]
        ended = subprocess.run(argv, stdout=sys.stderr, check=False)
        return json.loads(out.read_text()) if ended.returncode == 0 else None
