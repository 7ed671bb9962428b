"""All four services learn, started by the command that users type."""

import csv
import json
import math
import subprocess
from pathlib import Path

import pytest

from tests.helpers import ROOT, finished, killed_at_last, python
from zerobeast.common.files import run_files

pytestmark = pytest.mark.timeout(900)

LIMIT_S = 800


def beast_train(tmp_path: Path, name: str, *flags: str) -> subprocess.Popen[str]:
    command = ["-m", "zerobeast", "train", "--plain", "--root", tmp_path, "--name", name, "--learner.log_every_s", "1"]
    with (tmp_path / f"{name}.out").open("w") as out:
        return python(*command, *flags, cwd=ROOT, stdout=out, stderr=out)


def rows_of(tmp_path: Path, name: str) -> list[dict[str, str]]:
    """The rows of metrics.csv so far, without a line that is still being written."""
    file = tmp_path / name / "metrics.csv"
    whole, _, _ = file.read_text().rpartition("\n") if file.exists() else ("", "", "")
    return list(csv.DictReader(whole.splitlines()))


def train(tmp_path: Path, name: str, *flags: str, goal: float | None = None, workers: int = 1) -> list[dict[str, str]]:
    """Run `beast train` to its end, or until its mean return reaches the goal; return the rows of metrics.csv.

    Most of these policies are learned in less time than another worker takes to start. 0: one for each core.
    """
    until = [] if goal is None else ["--stop_at_return", str(goal)]
    process = beast_train(tmp_path, name, "--local.workers", str(workers), *flags, *until)
    with killed_at_last(process):
        assert process.wait(LIMIT_S) == 0, (tmp_path / f"{name}.out").read_text()[-3000:]
    return rows_of(tmp_path, name)


def best(rows: list[dict[str, str]]) -> float:
    """The highest mean return of 100 episodes."""
    return max((float(row["mean_return_100"]) for row in rows if row["mean_return_100"]), default=-math.inf)


def test_cartpole_is_solved_with_the_default_settings(tmp_path: Path) -> None:
    rows = train(tmp_path, "cartpole", "--env", "CartPole-v1", "--total_steps", "600000", goal=475, workers=0)
    assert float(rows[-1]["mean_return_100"]) >= 475
    assert int(rows[-1]["agent_steps"]) < 600_000, "it ends at the return that was asked for"
    assert "trained" in (tmp_path / "cartpole.out").read_text()
    assert (tmp_path / "cartpole" / run_files.BEST_CHECKPOINT).exists()


def test_memory_solves_the_memory_task(tmp_path: Path) -> None:
    """R2D2's test below shows that nothing else does."""
    flags = ["--env", "tests.e2e.memory_env:RememberCue-v0", "--total_steps", "60000", "--net.lstm_size", "32"]
    assert best(train(tmp_path, "memory", *flags, "--net.use_lstm", "true", goal=0.9)) >= 0.9


R2D2_REMEMBERS = ["--env", "tests.e2e.memory_env:RememberCue-v0", "--algo", "r2d2", "--total_steps", "30000"]


def test_r2d2_learns_to_use_its_memory_from_replayed_sequences(tmp_path: Path) -> None:
    rows = train(tmp_path, "r2d2", *R2D2_REMEMBERS, goal=0.8)
    assert best(rows) >= 0.8, "of 1; exploration spoils 0.08"


def test_r2d2_without_memory_guesses_however_often_it_replays(tmp_path: Path) -> None:
    out = tmp_path / "twin.json"
    twin = ["--lag", "0", "--seeds", "1", "--net.use_lstm", "false", "--root", tmp_path, "--json", out]
    code, _, error = finished(python("-m", "zerobeast", "bench", "stale", "--algos", "r2d2", *twin, *R2D2_REMEMBERS))
    assert code == 0, error
    [run] = json.loads(out.read_text())["runs"]
    returns = [value for _, value in run["curve"]]
    assert len(returns) > 200
    assert abs(sum(returns) / len(returns)) <= 0.15, "its own last action, which it sees, may help it for a while"


@pytest.mark.parametrize(("algo", "steps", "goal"), [("a2c", 150_000, 150), ("ppo", 70_000, 200)])
def test_cartpole_is_learned_synchronously_with_the_presets_of_other_algorithms(
    tmp_path: Path, algo: str, steps: int, goal: float
) -> None:
    flags = ["--env", "CartPole-v1", "--algo", algo, "--total_steps", str(steps)]
    rows = train(tmp_path, algo, *flags, goal=goal)
    assert best(rows) >= goal, "a policy that does not learn is near 22"
    # The first group that delivers has to fill a batch alone; only then do all groups wait for the version they led to.
    assert float(rows[-1]["policy_lag_mean"]) < 0.25, "actors that do not wait are a version behind"


@pytest.mark.parametrize(("algo", "steps"), [("vmpo", 150_000), ("impact", 100_000)])
def test_cartpole_is_learned_from_actors_that_do_not_wait(tmp_path: Path, algo: str, steps: int) -> None:
    flags = ["--env", "CartPole-v1", "--algo", algo, "--total_steps", str(steps), "--actor.collect_ahead", "true"]
    rows = train(tmp_path, algo, *flags, goal=200)
    assert best(rows) >= 200, "a policy that does not learn is near 22"
    if algo == "impact":
        assert int(rows[-1]["optimizer_steps"]) > 3 * int(rows[-1]["updates"]), "it learns from old batches"


@pytest.mark.parametrize(("algo", "steps", "goal"), [("dqn", 100_000, 150), ("rainbow", 80_000, 130)])
def test_cartpole_is_learned_from_a_replay(tmp_path: Path, algo: str, steps: int, goal: float) -> None:
    rows = train(tmp_path, algo, "--env", "CartPole-v1", "--algo", algo, "--total_steps", str(steps), goal=goal)
    assert best(rows) >= goal, "a policy that does not learn is near 22"
    assert (tmp_path / algo / "store").is_dir(), "what it learns from outlives it"


def test_the_cheetah_runs(tmp_path: Path) -> None:
    rows = train(tmp_path, "r", "--env", "HalfCheetah-v5", "--algo", "impala", "--total_steps", "800000", goal=200)
    assert best(rows) >= 200, "a policy that does not learn is below 0"


@pytest.mark.parametrize(
    ("algo", "task", "goal"),
    [("impala", "Panel", 6.0), ("a2c", "Aim", 3.6), ("ppo", "Aim", 4.8), ("impact", "Aim", 3.6), ("vmpo", "Aim", 3.6)],
)
def test_multi_discrete_and_continuous_actions_are_learned(tmp_path: Path, algo: str, task: str, goal: float) -> None:
    preset = "classic" if algo == "impala" else f"classic-{algo}"  # short episodes, whatever the actions
    flags = ["--env", f"tests.e2e.action_envs:{task}-v0", "--preset", preset, "--algo", algo, "--total_steps", "50000"]
    rows = train(tmp_path, algo, *flags, f"--{algo}.discount", "0", goal=goal)
    assert best(rows) >= goal, "the most is 8, chance less than 3, and in Aim without looking 1.6"


def test_continuous_actions_are_learned_from_a_replay(tmp_path: Path) -> None:
    """One update per agent step, so far fewer steps are enough."""
    flags = "--algo sac --total_steps 6000 --net.hidden_size 64 --sac.discount 0 --sac.learning_rate 3e-3"
    flags += " --sac.random_steps 300 --sac.replay_min_size 300 --sac.batch_size 64 --sac.samples_per_insert 64"
    rows = train(tmp_path, "sac", "--env", "tests.e2e.action_envs:Aim-v0", *flags.split(), goal=4.5)
    assert best(rows) >= 4.5, "the most is 8, without looking 1.6"


def test_every_part_of_nested_spaces_and_the_mask_are_learned_from(tmp_path: Path) -> None:
    """A random policy returns 4, one that misses any part of the observation or action at most 7."""
    nested = ("--env", "tests.e2e.signpost_env:Signpost-v0", "--env.action_mask", "action_mask")
    rows = train(tmp_path, "r", *nested, "--algo", "ppo", "--net.squash_actions", "true", goal=7.5)
    assert best(rows) >= 7.5
    assert "is closed" not in (tmp_path / "r.out").read_text(), "an illegal choice was taken"
