"""Results of runs: what is read, what is grouped, means over seeds and their intervals."""

from pathlib import Path

import numpy as np
import pytest

from tests.build.folders import evaluation, save_run, seeds
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import evaluations, run_files
from zerobeast.results import statistics
from zerobeast.results.atari import human_normalized
from zerobeast.results.curves import Curve, curve, find_overlapping, mean_curve
from zerobeast.results.groups import group_runs
from zerobeast.results.run_results import SavedRun, load_run


def find(root: Path, *wanted: str) -> list[SavedRun]:
    return [load_run(folder) for folder in run_files.find_runs(wanted, root)]


def labels(root: Path, *wanted: str) -> list[str]:
    return [group.label for group in group_runs(find(root, *(wanted or ("*",))))]


def test_a_run_is_found_by_name_folder_and_pattern_and_each_once(tmp_path: Path) -> None:
    def names(root: Path, *wanted: str) -> list[str]:
        return [folder.name for folder in run_files.find_runs(wanted, root)]

    root, odd = tmp_path / "runs", tmp_path / "of[1]" / "x[2]"
    for name in ("a-1", "a-2", "b", "a-1.old-20260101-120000"):
        save_run(root, name)
    (root / "a-3").mkdir()
    (root / "latest").write_text("b\n")
    save_run(odd, "c-1")
    assert names(root, "a-*") == ["a-1", "a-2"]
    assert names(root, "b", str(root / "b"), "latest") == ["b"]
    assert names(tmp_path, "runs") == ["a-1", "a-2", "b"]
    assert names(root, "a-1.old-20260101-120000") == ["a-1.old-20260101-120000"]
    assert names(odd, "c-*") == names(odd.parent, "x[2]") == ["c-1"]
    for missing in ("a-3", "c*", "x" * 5000, "~nobody/x", f"{'x' * 300}:{'1' * 5000}"):
        for one_of in (
            run_files.find_run,
            run_files.find_run_or_checkpoint,
            lambda name, root: run_files.find_runs([name], root),
        ):
            with pytest.raises(ConfigError):
                one_of(missing, root)
    assert (
        run_files.find_run_or_checkpoint(f"{root}/latest", "elsewhere")
        == run_files.find_run("latest", root)
        == root / "b"
    )
    assert run_files.expand_path(f"{root}/latest/checkpoints/5.pt") == root / "b" / "checkpoints" / "5.pt"
    assert run_files.folder_of(root / "b" / "best" / "checkpoint.pt") == root / "b"


CONFIGS = {
    "cut": "a: [1",
    "no algo": "seed: 1",
    "circle": "a: &a [*a]\nalgo: ppo\nenv: x",
    "bomb": "\n".join(["a0: &a0 [1, [2]]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))]),
    "deep": "a: " + 200_000 * "[",
    "tag": "algo: ppo\nenv: x\ntotal_steps: !!bool x",
}


@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS)
def test_a_config_that_is_none_is_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError):
        load_run(tmp_path)


def test_curves_are_of_training_or_evaluations_over_any_axis(tmp_path: Path) -> None:
    run = load_run(save_run(tmp_path, "a", {10: "", 20: 1.0, 30: 3.0, 31: "nan"}, {15: 5.0}))
    with (run.folder / "metrics.csv").open("a") as file:
        file.write("3.2,32,128,9")  # a line that is being written
    assert curve(run, "steps", "training").y.tolist() == [1.0, 3.0]
    assert curve(run, "frames", "evaluation").x.tolist() == [60.0]
    assert curve(run, "time", "mean_return_100").x.tolist() == [2.0, 3.0]
    assert curve(run, "mean_return_100", "elapsed_s").x.tolist() == [1.0, 3.0]
    assert curve(run, "steps", "training", smooth=2).y.tolist() == [1.0, 2.0]
    with pytest.raises(ConfigError, match="retrun"):
        curve(run, "steps", "retrun")


def test_results_of_another_program_stand_beside_runs(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text('{"env": "CartPole-v1", "algo": "theirs", "seed": 1}')
    (tmp_path / "metrics.csv").write_text("agent_steps,elapsed_s,mean_return_100\n5,1.5,2.5\n")
    run, own = load_run(tmp_path), load_run(save_run(tmp_path, "a", {5: 1.0}))
    assert curve(run, "time", "training").y.tolist() == [2.5]
    assert [group.label for group in group_runs([run, own])] == ["PPO", "theirs"]


def test_evaluations_of_several_environments_are_averaged_or_chosen(tmp_path: Path) -> None:
    folder = save_run(tmp_path, "a", env="x,y")
    rows = [evaluation(steps, value, env) for steps, env, value in [(10, "x", 1.0), (10, "y", 3.0), (20, "x", 5.0)]]
    evaluations.write_evaluations(folder, [{**row, "info/is_success": 1.0} for row in rows])
    run = load_run(folder)
    assert curve(run, "steps", "evaluation").y.tolist() == [2.0, 5.0]
    assert curve(run, "steps", "evaluation", where={"env": "y"}).y.tolist() == [3.0]
    assert curve(run, "steps", "info/is_success", smooth=10**13).y.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("how", [{"times": 10}, {"every_steps": 4_000}])
def test_evaluations_of_seeds_are_where_they_were_due(tmp_path: Path, how: dict[str, int]) -> None:
    made = [{4_096: 1.0, 8_192: 5.0, 12_288: 2.0, 40_000: 3.0}, {4_608: 3.0, 8_704: 7.0, 12_288: 4.0, 40_000: 5.0}]
    seeds(tmp_path, "ppo", made, total_steps=40_000, evaluate=how)
    run, other = find(tmp_path, "ppo*")
    first, second = (curve(each, "steps", "evaluation") for each in (run, other))
    assert first.x.tolist() == second.x.tolist() == [4_000, 8_000, 12_000, 40_000]
    assert mean_curve([first, second]).mean.tolist() == [2.0, 6.0, 3.0, 4.0]
    assert curve(run, "frames", "evaluation").x.tolist() == [16_000, 32_000, 48_000, 160_000]
    assert curve(run, "agent_steps", "evaluation").x.tolist() == [*made[0]]


def test_the_mean_is_of_points_that_all_runs_have() -> None:
    first = Curve(np.array([0.0, 10.0, 20.0]), np.array([0.0, 10.0, 20.0]))
    second = Curve(np.array([5.0, 15.0]), np.ones(2))
    mean = mean_curve([first, second])
    assert (mean.x[0], mean.x[-1]) == (5.0, 15.0)
    assert np.allclose(mean.mean, (mean.x + 1) / 2)
    assert (np.array([mean.mean - mean.low, mean.high - mean.mean]) >= 0).all()
    same = mean_curve([first, first._replace(y=first.y + 2)])
    assert (same.x.tolist(), same.mean.tolist()) == (first.x.tolist(), [1.0, 11.0, 21.0])
    assert mean_curve([first]).low is None
    cut = mean_curve([first, first._replace(x=np.array([0.0, 10.0, 18.0]))])
    assert cut.x.tolist() == [0.0, 10.0, 18.0], "to the end of the shortest"
    many = mean_curve([Curve(np.arange(5000.0), np.arange(5000.0))] * 2)
    assert (len(many.x), many.x[0], many.x[-1]) == (200, 0.0, 4999.0)
    late = second._replace(x=second.x + 50)
    assert find_overlapping([first, late, second]) == [True, False, True], "the one that begins after the others' ends"
    assert find_overlapping([late, first]) == [True, False], "of two, the shorter"


def test_the_iqm_is_the_mean_of_the_middle_half_and_intervals_cover_the_mean_as_often_as_they_should() -> None:
    assert statistics.iqm(np.array([0.0, 1.0, 3.0, 100.0])) == 2.0
    low, high = statistics.interval(np.random.default_rng(1).normal(size=(30, 400)), np.mean)
    assert 0.9 < np.mean((low < 0) & (high > 0)) < 0.98


def test_groups_differ_in_more_than_seed_name_and_place_and_labels_name_just_enough_settings(tmp_path: Path) -> None:
    seeds(tmp_path, "slow", [{10: 1.0}] * 2, ppo={"learning_rate": 1e-4}, health={"port": 1})
    seeds(tmp_path, "fast", [{10: 1.0}] * 2, ppo={"learning_rate": 1e-3}, broker={"endpoint": "x"})
    found = {group.label: [run.name for run in group.runs] for group in group_runs(find(tmp_path, "*"))}
    assert found == {
        "learning_rate 0.0001": ["slow-seed1", "slow-seed2"],
        "learning_rate 0.001": ["fast-seed1", "fast-seed2"],
    }
    each = group_runs(find(tmp_path, "slow*"), each=True)
    assert [group.label for group in each] == ["slow-seed1", "slow-seed2"]
    save_run(tmp_path, "other", algo="dqn")
    assert labels(tmp_path) == ["PPO, learning_rate 0.0001", "PPO, learning_rate 0.001", "DQN"]
    for number in (1, 2, 3):
        save_run(tmp_path / "b", f"r{number}", learner={"batch_size": number, "unroll_length": min(number, 2)})
    assert labels(tmp_path / "b") == [f"learner.batch_size {number}" for number in (1, 2, 3)]


def test_where_a_run_was_trained_and_what_it_left_is_no_difference_and_nor_is_a_default(tmp_path: Path) -> None:
    save_run(tmp_path, "a", parent={"run": "x", "agent_steps": 10}, learner={"threads": 1, "keep_checkpoints": 1})
    save_run(tmp_path, "b", parent={"run": "y", "agent_steps": 20}, seed=2, learner={"threads": 2, "log_every_s": 1.0})
    assert len(labels(tmp_path)) == 1
    save_run(tmp_path, "c", seed=3)
    assert labels(tmp_path) == ["parent.run none", "parent.run yes"]
    save_run(tmp_path, "new", seed=4, evaluate={"max_steps": 30_000}, ppo={"learning_rate": 3e-4})
    assert len(labels(tmp_path, "c", "new")) == 1, "saved before a setting existed"
    save_run(tmp_path, "changed", seed=5, evaluate={"max_steps": 11})
    assert labels(tmp_path, "c", "new", "changed") == ["evaluate.max_steps 11", "evaluate.max_steps 30000"]


def test_human_normalised_scores_are_of_the_57_games_alone() -> None:
    for env in ("PongNoFrameskip-v4", "ALE/Pong-v5", "ale_py:ALE/Pong-v5", "envpool/Pong-v5"):
        assert [human_normalized(env, score) for score in (-20.7, 14.6)] == [0.0, 1.0]
    for env in ("MinAtar/Breakout-v1", "Pong-v4,Breakout-v4", "ALE/Pacman-v5"):
        assert human_normalized(env, 1.0) is None
