"""`beast bench` without its long runs: the figures of a replay, and which policy acts in a lagging run."""

from pathlib import Path

from zerobeast.common.config.load import load
from zerobeast.rl.nets.weights import flatten
from zerobeast_tools.bench.in_process import InProcess
from zerobeast_tools.bench.replay import measure

LAG, UPDATES = 2, 5


def test_a_replay_has_figures_and_leaves_no_files(tmp_path: Path) -> None:
    config = load(["--env", "CartPole-v1", "--root", str(tmp_path), "--actor.envs_per_group", "2"], {})
    found = measure(config, 0.01, stored=400, played=120)
    assert all(each.value > 0 and each.yardstick for each in found)
    assert list(tmp_path.iterdir()) == []


def test_the_policy_that_acts_is_that_of_lag_updates_ago_and_a_seed_decides_every_number() -> None:
    sizes = ["--learner.unroll_length", "10", "--learner.batch_size", "4", "--net.hidden_size", "8"]
    config = load(["--env", "CartPole-v1", "--algo", "impala", "--total_steps", str(UPDATES * 40), *sizes], {})

    def trained() -> tuple[list[bytes], bytes]:
        rollouts = []
        with InProcess(config, LAG) as run:
            while run.trainer.steps_left:
                rows = run.collect()
                assert (rows["policy_version"] == max(0, len(rollouts) - LAG)).all()
                rollouts.append(rows.tobytes())
                run.learn(rows)
            return rollouts, flatten(run.trainer.net).tobytes()

    first, again = trained(), trained()
    assert len(first[0]) == UPDATES
    assert first == again
