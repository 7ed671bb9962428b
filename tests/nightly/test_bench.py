"""Benchmarks of the whole system run, report a rate for each case, and leave no process when they are ended."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zerobeast.cli import main as cli
from zerobeast_tools.bench import scale

pytestmark = pytest.mark.timeout(900)

CARTPOLE = ["--env", "CartPole-v1"]
STALE = ("--algos", "a2c", "--seeds", "2", "--total_steps", "1000000000")


def run(tmp_path: Path, *argv: str) -> dict[str, Any]:
    """The result of a benchmark, which `beast bench all` has to be able to read."""
    out = tmp_path / "result.json"
    assert cli.main(["bench", *argv, "--json", str(out)]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    assert all(figure["met"] is not None for figure in found.get("figures", ()) if figure["goal"])
    return found


@pytest.mark.parametrize(
    ("command", "cases"),
    [("latency", ["0 ms", "5 ms", "20 ms"]), ("keys", ["without keys", "with keys"]), ("scale", ["1", "2"])],
)
def test_there_is_a_rate_for_each_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, cases: list[str]
) -> None:
    monkeypatch.setattr(scale, "MOST", 2)
    env = [] if command == "scale" else CARTPOLE
    rates = run(tmp_path, command, *env, "--seconds", "4", "--warmup", "1")["rates"]
    assert list(rates) == cases
    assert all(np.min(rate) > 0 for rate in rates.values())


def test_memory_watches_every_service(tmp_path: Path) -> None:
    found = run(tmp_path, "memory", *CARTPOLE, "--minutes", "0.1", "--out", str(tmp_path / "memory.png"))["growth"]
    assert set(found) == {"learner", "broker", "envserver", "actor"}
    assert (tmp_path / "memory.png").stat().st_size > 1000


@pytest.mark.parametrize("command", ["steps", "broker", "rollouts", "weights"])
def test_every_plane_has_figures(tmp_path: Path, command: str) -> None:
    assert all(each["value"] > 0 for each in run(tmp_path, command, "--seconds", "0.5")["figures"])


def test_stale_repeats_itself(tmp_path: Path) -> None:
    sizes = ["--learner.batch_size", "8", "--learner.unroll_length", "20", "--total_steps", "1600", "--seeds", "1"]
    one, again = (run(tmp_path, "stale", "--env", "MinAtar/Breakout-v1", *sizes)["runs"] for _ in range(2))
    assert [(each["algo"], each["curve"]) for each in one] == [(each["algo"], each["curve"]) for each in again]


def test_a_commit_learns_the_same_numbers_as_itself_and_its_rate_is_compared() -> None:
    assert cli.main(["bench", "digits", "--checkout", "HEAD", "--algos", "ppo,dqn"]) == 0
    assert cli.main(["bench", "compare", "--checkout", "HEAD", *CARTPOLE, "--warmup", "1"]) in (0, 1)
