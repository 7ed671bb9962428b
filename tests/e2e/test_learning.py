"""All four services learn, started by the command that users type."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


def train(tmp_path: Path, name: str, *flags: str) -> list[dict[str, str]]:
    """Run `beast train` to its end and return the rows of metrics.csv."""
    command = [sys.executable, "-m", "deploy.cli", "train", "--plain", "--root", str(tmp_path), "--name", name, *flags]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    with (tmp_path / name / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def returns(rows: list[dict[str, str]]) -> list[float]:
    return [float(row["mean_return_100"]) for row in rows if row["mean_return_100"]]


def test_cartpole_is_solved_with_the_default_settings(tmp_path: Path) -> None:
    rows = train(tmp_path, "cartpole", "--env", "CartPole-v1", "--total_steps", "200000", "--learner.log_every_s", "1")
    assert int(rows[-1]["agent_steps"]) == 200_000
    assert max(returns(rows)) >= 475


@pytest.mark.parametrize("use_lstm", [True, False], ids=["recurrent", "feed-forward"])
def test_only_memory_solves_the_memory_task(tmp_path: Path, use_lstm: bool) -> None:
    flags = ["--env", "tests.e2e.memory_env:RememberCue-v0", "--total_steps", "60000", "--learner.log_every_s", "1"]
    flags += ["--net.use_lstm", str(use_lstm).lower(), "--net.lstm_size", "32"]
    best = max(returns(train(tmp_path, "memory", *flags)))
    if use_lstm:
        assert best >= 0.9, "the cue is remembered"
    else:
        assert best <= 0.5, "without memory the answer is a guess"
