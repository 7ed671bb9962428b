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


@pytest.mark.parametrize(("algo", "steps", "goal"), [("a2c", 150_000, 150), ("ppo", 70_000, 300)])
def test_cartpole_is_learned_synchronously_with_the_presets_of_other_algorithms(
    tmp_path: Path, algo: str, steps: int, goal: float
) -> None:
    flags = ["--env", "CartPole-v1", "--algo", algo, "--total_steps", str(steps), "--learner.log_every_s", "1"]
    rows = train(tmp_path, algo, *flags)
    assert int(rows[-1]["agent_steps"]) == steps
    assert max(returns(rows)) >= goal, "a policy that does not learn is near 22"
    # The first group that delivers has to fill a batch alone; only then do all of them wait for what they led to.
    assert float(rows[-1]["policy_lag_mean"]) < 0.25, "actors that do not wait are a version behind"


def test_ppo_learns_from_actors_that_do_not_wait(tmp_path: Path) -> None:
    flags = ["--env", "CartPole-v1", "--algo", "ppo", "--actor.collect_ahead", "true", "--ppo.vtrace", "true"]
    flags += ["--learner.batch_size", "8", "--ppo.minibatches", "4", "--total_steps", "70000"]
    assert max(returns(train(tmp_path, "appo", *flags, "--learner.log_every_s", "1"))) >= 250


def test_vmpo_learns_cartpole_from_actors_that_do_not_wait(tmp_path: Path) -> None:
    flags = ["--env", "CartPole-v1", "--algo", "vmpo", "--total_steps", "150000", "--learner.log_every_s", "1"]
    rows = train(tmp_path, "vmpo", *flags)
    assert int(rows[-1]["agent_steps"]) == 150_000
    assert max(returns(rows)) >= 400


def test_vmpo_swings_the_pendulum_up(tmp_path: Path) -> None:
    flags = ["--env", "Pendulum-v1", "--algo", "vmpo", "--total_steps", "250000", "--learner.log_every_s", "1"]
    flags += ["--vmpo.discount", "0.9", "--vmpo.popart", "false", "--vmpo.reward_scale", "0.03", "--vmpo.eta", "0.1"]
    best = max(returns(train(tmp_path, "pendulum", *flags)))
    assert best >= -600, "a policy that does not learn is near -1200"


def test_impact_learns_from_actors_that_do_not_wait_and_from_old_batches(tmp_path: Path) -> None:
    flags = ["--env", "CartPole-v1", "--algo", "impact", "--total_steps", "100000", "--learner.log_every_s", "1"]
    rows = train(tmp_path, "impact", *flags)
    assert max(returns(rows)) >= 400
    assert int(rows[-1]["optimizer_steps"]) > 3 * int(rows[-1]["updates"])


@pytest.mark.parametrize(
    ("algo", "goal", "settings"),
    [
        ("ppo", -500, "--ppo.discount 0.9 --ppo.learning_rate 1e-3 --ppo.minibatches 16"),
        (
            "impact",
            -600,
            "--actor.envs_per_group 8 --learner.unroll_length 16 --learner.batch_size 16 --impact.discount 0.9 "
            "--impact.batches 4 --impact.uses 8 --impact.kl_cost 0 --impact.normalize_advantages true "
            "--impact.learning_rate 3e-3",
        ),
    ],
    ids=["ppo", "impact"],
)
def test_pendulum_swings_up(tmp_path: Path, algo: str, goal: float, settings: str) -> None:
    flags = ["--env", "Pendulum-v1", "--algo", algo, "--total_steps", "80000", "--learner.log_every_s", "1"]
    best = max(returns(train(tmp_path, "pendulum", *flags, *settings.split())))
    assert best >= goal, "a policy that does not learn is near -1200"


@pytest.mark.parametrize(
    ("algo", "task", "goal"),
    [("impala", "Panel", 6.0), ("a2c", "Panel", 6.0), ("a2c", "Aim", 3.6), ("ppo", "Aim", 4.8)],
)
def test_several_choices_and_real_actions_are_learned(tmp_path: Path, algo: str, task: str, goal: float) -> None:
    flags = ["--env", f"tests.e2e.action_envs:{task}-v0", "--algo", algo, "--total_steps", "50000"]
    flags += ["--learner.log_every_s", "1", f"--{algo}.discount", "0"]
    assert max(returns(train(tmp_path, "actions", *flags))) >= goal, "the most is 8, chance less than 3"
