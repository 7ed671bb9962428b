"""All four services learn, one algorithm of each family; tests/unit has every algorithm, tests/nightly long curves."""

from pathlib import Path

import pytest

from tests.build.commands import TASKS, best, train
from zerobeast.common.files import run_files

pytestmark = pytest.mark.timeout(900)


def test_cartpole_is_solved_with_the_default_settings(tmp_path: Path) -> None:
    run = tmp_path / "cartpole"
    rows = train(run, "--env", "CartPole-v1", "--total_steps", "600000", goal=475, workers=0)
    assert float(rows[-1]["mean_return_100"]) >= 475
    assert int(rows[-1]["agent_steps"]) < 600_000, "it ends at the return that was asked for"
    assert (run / run_files.BEST_CHECKPOINT).exists()


def test_ppo_learns_cartpole_from_actors_that_wait_for_each_update(tmp_path: Path) -> None:
    rows = train(tmp_path / "ppo", "--env", "CartPole-v1", "--algo", "ppo", "--total_steps", "70000", goal=150)
    assert best(rows) >= 150, "a policy that does not learn is near 22"
    # The first group that delivers has to fill a batch alone; only then do all groups wait for the version they led to.
    assert float(rows[-1]["policy_lag_mean"]) < 0.25, "actors that do not wait are a version behind"


def test_r2d2_learns_to_use_its_memory_from_replayed_sequences(tmp_path: Path) -> None:
    rows = train(
        tmp_path / "r", "--env", f"{TASKS}:RememberCue-v0", "--algo", "r2d2", "--total_steps", "30000", goal=0.8
    )
    assert best(rows) >= 0.8, "of 1; exploration spoils 0.08"
    assert (tmp_path / "r" / "store").is_dir(), "what it learns from outlives it"


def test_sac_learns_continuous_actions_from_a_replay(tmp_path: Path) -> None:
    """One update per agent step, so few steps are enough."""
    flags = "--algo sac --total_steps 6000 --net.hidden_size 64 --sac.discount 0 --sac.learning_rate 3e-3"
    flags += " --sac.random_steps 300 --sac.replay_min_size 300 --sac.batch_size 64 --sac.samples_per_insert 64"
    rows = train(tmp_path / "sac", "--env", f"{TASKS}:Aim-v0", *flags.split(), goal=4.5)
    assert best(rows) >= 4.5, "the most is 8, without looking 1.6"


@pytest.mark.nightly
def test_every_part_of_nested_spaces_and_the_mask_are_learned_from(tmp_path: Path) -> None:
    """A random policy returns 3.2 of 8; one that misses any part of the observation or action at most 5.6."""
    nested = ("--env", f"{TASKS}:Signpost-v0", "--env.action_mask", "action_mask")
    rows = train(tmp_path / "r", *nested, "--algo", "ppo", "--net.squash_actions", "true", goal=6.0)
    assert best(rows) >= 6.0
    assert "is closed" not in (tmp_path / "r.out").read_text(), "an illegal choice was taken"
