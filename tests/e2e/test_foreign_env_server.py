"""A run whose environments live in a program that knows nothing of this project but docs/protocol.md."""

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "examples" / "foreign_env_server.py"


@contextmanager
def started(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the test."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, *command], cwd=ROOT, env=env, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def test_a_real_run_learns_cartpole_from_a_foreign_env_server(tmp_path: Path) -> None:
    services = ("envserver", "broker", "learner")
    flags = [text for name in services for text in (f"--{name}.endpoint", f"ipc://{tmp_path}/{name}")]
    flags += ["--env.id", "CartPole-v1", "--total_steps", "50000", "--name", "foreign", "--root", str(tmp_path)]
    flags += ["--learner.log_every_s", "1"]
    with ExitStack() as stack:
        stack.enter_context(started(tmp_path / "env.log", "-I", str(SCRIPT), f"ipc://{tmp_path}/envserver"))
        for role in ("broker", "actor"):
            stack.enter_context(started(tmp_path / f"{role}.log", "-m", f"zerobeast.services.{role}", *flags))
        learner = stack.enter_context(started(tmp_path / "learner.log", "-m", "zerobeast.services.learner", *flags))
        assert learner.wait(timeout=500) == 0, (tmp_path / "learner.log").read_text()
    with (tmp_path / "foreign" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert int(rows[-1]["agent_steps"]) == 50_000
    assert max(float(row["mean_return_100"] or 0) for row in rows) >= 100, "a random policy reaches about 22"
