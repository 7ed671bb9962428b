"""Algorithms learn through all services what takes minutes."""

from pathlib import Path

import pytest

from tests.build.commands import TASKS, best, evaluate_run, rows_of, train
from tests.helpers import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]

SIGNAL = ROOT / "tests" / "build" / "parts.py"


@pytest.mark.parametrize(
    ("algo", "steps", "goal"),
    [
        ("a2c", 150_000, 150),
        ("ppo", 70_000, 200),
        ("vmpo", 150_000, 200),
        ("impact", 100_000, 200),
        ("dqn", 100_000, 150),
        ("rainbow", 80_000, 130),
    ],
)
def test_cartpole_is_learned(tmp_path: Path, algo: str, steps: int, goal: float) -> None:
    rows = train(tmp_path / algo, "--env", "CartPole-v1", "--algo", algo, "--total_steps", str(steps), goal=goal)
    assert best(rows) >= goal, "a policy that does not learn is near 22"


@pytest.mark.parametrize(
    ("algo", "task", "goal"),
    [("impala", "Panel", 6.0), ("a2c", "Aim", 3.6), ("ppo", "Aim", 4.8), ("impact", "Aim", 3.6), ("vmpo", "Aim", 3.6)],
)
def test_multi_discrete_and_continuous_actions_are_learned(tmp_path: Path, algo: str, task: str, goal: float) -> None:
    preset = "classic" if algo == "impala" else f"classic-{algo}"  # short episodes, whatever the actions
    flags = ["--env", f"{TASKS}:{task}-v0", "--preset", preset, "--algo", algo, "--total_steps", "50000"]
    rows = train(tmp_path / algo, *flags, f"--{algo}.discount", "0", goal=goal)
    assert best(rows) >= goal, "the most is 8, chance less than 3, and in Aim without looking 1.6"


def test_the_cheetah_runs(tmp_path: Path) -> None:
    rows = train(tmp_path / "r", "--env", "HalfCheetah-v5", "--algo", "impala", "--total_steps", "800000", goal=200)
    assert best(rows) >= 200, "a policy that does not learn is below 0"


def test_memory_solves_the_memory_task(tmp_path: Path) -> None:
    flags = ["--env", f"{TASKS}:RememberCue-v0", "--total_steps", "60000", "--net.core_width", "32"]
    assert best(train(tmp_path / "r", *flags, "--net.core", "lstm", goal=0.9)) >= 0.9


def test_a_task_that_pays_ten_thousand_times_as_much_does_not_drown_the_other(tmp_path: Path) -> None:
    """A batch holds rows of both. With one shared value and unit the cheap one stays near chance."""
    flags = "--total_steps 40000 --learner.batch_size 16 --impala.popart true --impala.reward_scale 1"
    envs = f"{TASKS}:Cheap-v0,{TASKS}:Dear-v0"
    train(tmp_path / "both", "--env", envs, *flags.split(), "--impala.discount", "0.5", workers=0)
    cheap, dear = evaluate_run("both", "--root", tmp_path, "--env", envs, "--episodes", "30")
    assert cheap["mean_return"] >= 6.0, "the most is 8, chance 2"
    assert dear["mean_return"] >= 60_000


def test_a_gridworld_is_learned_with_a_signal_of_ones_own(tmp_path: Path) -> None:
    memory = ("--net.memory", f"{SIGNAL}:newest", "--memory.familiar", "128", "--memory.replay_share", "0.1")
    flags = ("--env", "zipf/Gridworld-small", "--algo", "impala", "--net.core", "lstm", "--total_steps", "200000")
    assert best(train(tmp_path / "gw", *flags, *memory)) >= 0.3, "a random policy is at 0.15"
    assert float(rows_of(tmp_path / "gw")[-1]["memory_entries"] or 512) == 512
