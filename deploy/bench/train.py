"""The steady training rate of the real system, beside the limit measured in the same run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from common.errors import BeastError
from deploy.bench import limit
from deploy.bench.options import emit, parse

START_LIMIT_S = 120.0
STOP_LIMIT_S = 20.0


def main(argv: list[str]) -> int:
    """`beast bench train`: limit, then training, then the ratio."""
    options, config, flags = parse("train", argv, seconds=60.0, warmup=20.0, part=3.0)
    machine = limit.measure(config, options.part)
    rate, pages = training_rate(flags, options.warmup, options.seconds)
    precision = str(pages["learner"].get("precision", "float32"))
    result = {
        "machine": machine,
        "rate": rate,
        "ratio": rate / machine["best"],
        "ratio_same_precision": rate / machine["limit"][precision],
        "precision": precision,
        "seconds": options.seconds,
        "pages": pages,
    }
    emit(result, f"{limit.describe(machine)}\n{_describe(result)}", options.json)
    return 0


def _describe(result: dict[str, Any]) -> str:
    pages = result["pages"]
    keys = {
        "learner": ("waiting_fraction", "policy_lag_mean", "queue_rows"),
        "broker": ("busy_fraction", "batch_rows_mean"),
        "actor": ("waiting_env_fraction", "waiting_broker_fraction", "waiting_credit_fraction"),
        "envserver": ("busy_fraction",),
    }
    lines = [
        f"  training, all services  {result['rate']:9.0f}   over {result['seconds']:.0f} s, {result['precision']}",
        f"  ratio to the limit      {result['ratio']:9.2f}   (same precision: {result['ratio_same_precision']:.2f})",
    ]
    for role, names in keys.items():
        page = pages.get(role, {})
        lines.append(f"  {role:<10} " + "  ".join(f"{name} {page.get(name)}" for name in names))
    return "\n".join(lines)


def training_rate(flags: list[str], warmup_s: float, seconds: float) -> tuple[float, dict[str, Any]]:
    """Train for a while in a throw-away folder and return (agent steps a second, last health pages)."""
    with tempfile.TemporaryDirectory(prefix="beast-bench-") as root:
        command = [sys.executable, "-m", "deploy.cli", "train", *flags]
        command += ["--plain", "--root", root, "--name", "bench", "--total_steps", str(10**9)]
        log = Path(root) / "train.log"
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=dict(os.environ))
            try:
                services = Path(root) / "bench" / "services"
                _wait_for_steps(process, services, log)
                time.sleep(warmup_s)
                start = _agent_steps(services)
                time.sleep(seconds)
                end = _agent_steps(services)
                return (end[1] - start[1]) / (end[0] - start[0]), _pages(services)
            finally:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(STOP_LIMIT_S)
                except subprocess.TimeoutExpired:
                    process.kill()


def _wait_for_steps(process: subprocess.Popen[bytes], services: Path, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while process.poll() is None and time.monotonic() < deadline:
        if _pages(services).get("learner", {}).get("updates", 0) > 0:
            return
        time.sleep(0.2)
    raise BeastError(f"training did not start:\n{log.read_text()[-2000:]}")


def _agent_steps(services: Path) -> tuple[float, int]:
    """(when, agent steps consumed by updates so far)."""
    now = time.monotonic()
    return now, int(_pages(services)["learner"]["agent_steps"])


def _pages(services: Path) -> dict[str, Any]:
    pages = {}
    for path in sorted(services.glob("*.json")):
        entry = json.loads(path.read_text())
        try:
            with urllib.request.urlopen(f"http://{entry['health']}/healthz", timeout=5) as reply:
                pages[str(entry["role"])] = json.load(reply)
        except OSError:
            continue
    return pages
