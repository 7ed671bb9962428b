"""`beast bench` without its long runs: the figures of a replay, and which policy acts in a lagging run."""

from pathlib import Path

from zerobeast.common.config.load import load
from zerobeast_tools.bench.in_process import InProcess
from zerobeast_tools.bench.replay import measure


def test_a_replay_has_figures_and_leaves_no_files(tmp_path: Path) -> None:
    config = load(["--env", "CartPole-v1", "--root", str(tmp_path), "--actor.envs_per_group", "2"], {})
    found = measure(config, 0.01, stored=400, played=120)
    assert all(each.value > 0 and each.yardstick for each in found)
    assert list(tmp_path.iterdir()) == []


def test_the_policy_that_acts_is_that_of_lag_updates_ago() -> None:
    sizes = ["--learner.unroll_length", "10", "--learner.batch_size", "4", "--total_steps", "200"]
    with InProcess(load(["--env", "CartPole-v1", "--algo", "impala", *sizes], {}), lag=2) as run:
        for version in (0, 0, 0, 1, 2):
            rows = run.collect()
            assert (rows["policy_version"] == version).all()
            run.learn(rows)
        assert not run.trainer.steps_left
