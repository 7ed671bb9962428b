"""Benchmarks of the whole system run, report a rate for each case, and leave no process when they are ended."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zerobeast.cli import main as cli
from zerobeast_tools.bench import scale

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

CARTPOLE = ["--env", "CartPole-v1"]


def run(tmp_path: Path, *argv: str) -> dict[str, Any]:
    """The result of a benchmark, which `beast bench all` has to be able to read."""
    out = tmp_path / "result.json"
    assert cli.main(["bench", *argv, "--json", str(out)]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    assert all(figure["met"] is not None for figure in found.get("figures", ()) if figure["goal"])
    return found


@pytest.mark.parametrize("command", ["latency", "keys", "scale"])
def test_there_is_a_rate_for_each_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(scale, "MAX_ACTORS", 2)
    env = [] if command == "scale" else CARTPOLE
    rates = run(tmp_path, command, *env, "--seconds", "4", "--warmup", "1")["rates"]
    assert all(np.min(rate) > 0 for rate in rates.values())


@pytest.mark.parametrize("command", ["steps", "broker", "rollouts", "weights"])
def test_every_plane_has_figures(tmp_path: Path, command: str) -> None:
    assert all(each["value"] > 0 for each in run(tmp_path, command, "--seconds", "0.5")["figures"])


def test_most_of_what_many_workers_play_is_learned_from(tmp_path: Path) -> None:
    flags = ("--local.actors", "8", "--seconds", "4", "--warmup", "4")
    [share, rate] = run(tmp_path, "waste", *CARTPOLE, *flags)["figures"]
    assert share["met"], "of the played steps"
    assert rate["value"] > 0


def test_memory_and_stale_run(tmp_path: Path) -> None:
    found = run(tmp_path, "memory", *CARTPOLE, "--minutes", "0.1", "--out", str(tmp_path / "memory.png"))["growth"]
    assert set(found) == {"learner", "broker", "envserver", "actor"}
    sizes = ["--learner.batch_size", "8", "--learner.unroll_length", "20", "--total_steps", "1600", "--seeds", "1"]
    assert run(tmp_path, "stale", "--env", "MinAtar/Breakout-v1", *sizes)["runs"]


def test_a_commit_learns_the_same_numbers_as_itself_and_its_rate_is_compared() -> None:
    assert cli.main(["bench", "digits", "--checkout", "HEAD", "--algos", "ppo,dqn"]) == 0
    assert cli.main(["bench", "compare", "--checkout", "HEAD", *CARTPOLE, "--warmup", "1"]) in (0, 1)
