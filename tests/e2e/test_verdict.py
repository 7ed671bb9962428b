"""The verdict names whatever holds a real run up: each service is slowed down in turn, and so is the wire."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.health.verdict import verdict
from common.health.views import ServiceView
from deploy.bench.delay import DelayedSockets
from deploy.bench.services import Services
from deploy.bench.train import training

pytestmark = pytest.mark.e2e

SLOW = ["--env", "CartPole-v1", "--learner.log_every_s", "1000"]
STOPPED_S, RUNNING_S = 0.045, 0.005
PATIENCE_S = 60.0


@contextlib.contextmanager
def throttled(pid: int) -> Iterator[None]:
    """Let a process run a tenth of the time."""
    over = threading.Event()

    def turns() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(STOPPED_S)
            os.kill(pid, signal.SIGCONT)
            over.wait(RUNNING_S)

    thread = threading.Thread(target=turns)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def wait_for_verdict(services: Path, expected: str) -> None:
    """Ask `beast health` until it says so."""
    command = [sys.executable, "-m", "deploy.cli", "health", "--run", services.parent.name, "--json"]
    command += ["--root", str(services.parent.parent)]
    deadline, seen = time.monotonic() + PATIENCE_S, []
    while time.monotonic() < deadline:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        seen.append(json.loads(done.stdout)["verdict"])
        if seen[-1].startswith(expected):
            return
        time.sleep(1.0)
    pytest.fail(f"never {expected!r}, but {sorted(set(seen))}")


def test_a_slow_service_is_named() -> None:
    expected = {
        "learner": "training-bound",
        "broker": "inference-bound",
        "envserver": "environment-bound",
        "actor": "actor-bound",
    }
    with training(SLOW) as services:
        for role, sentence in expected.items():
            pid = json.loads((services / f"{role}-0.json").read_text())["pid"]
            with throttled(pid):
                wait_for_verdict(services, sentence)


def test_a_slow_wire_is_named() -> None:
    with tempfile.TemporaryDirectory(prefix="beast-") as name:
        folder = Path(name)
        targets = {folder / f"b.{index}": folder / f"real.{index}" for index in (0, 1)}
        with Services(SLOW, folder) as run:
            run.start("learner")
            run.start("envserver")
            run.start("broker", "--broker.endpoint", f"ipc://{folder}/real")
            with DelayedSockets(targets, 0.05):
                run.start("actor")
                run.rate(warmup_s=6.0, seconds=1.0)
                pages = [page for role in ("learner", "broker", "envserver", "actor") for page in run.pages(role)]
        seen = verdict([ServiceView(page["role"], page["role"], page) for page in pages])
        assert seen.startswith("network-bound"), seen
        assert "broker" in seen
