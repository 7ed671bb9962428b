"""Counting whole episodes without bias, from seeds and in levels of their own."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from tests.build.batches import VECTORS
from tests.build.folders import policy_run, saved
from tests.build.steps import MANY, rows
from zerobeast.api.saved import find, load, with_new_episodes
from zerobeast.cli.evaluate import described
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire.episodes import Episode
from zerobeast.playing.evaluation import Evaluation
from zerobeast.playing.play import MAX_ENVS, EpisodeCounter
from zerobeast.services.actor.service import assigned
from zerobeast.services.envserver.levels import evaluated

SEED = ("--evaluate.seed=1000",)


@pytest.mark.parametrize(("episodes", "num_envs"), [(1, 1), (10, 3), (100, 16)])
def test_environments_contribute_equally_but_for_the_remainder(episodes: int, num_envs: int) -> None:
    counter, rounds = EpisodeCounter(episodes, num_envs, MANY), 0
    while not counter.complete:
        counter.add(rows([1.0] * num_envs, ended=range(num_envs)), [Episode(1.0, 1)] * num_envs)
        rounds += 1
    assert (len(counter.episodes), rounds) == (episodes, -(-episodes // num_envs))


def test_short_episodes_do_not_crowd_out_long_ones() -> None:
    counter = EpisodeCounter(4, 2, MANY)
    for _ in range(10):  # environment 0 ends an episode every other step, environment 1 none yet
        counter.add(rows([1.0, 1.0], ended=[0]), [Episode(1.0, 1)])
        counter.add(rows([0.0, 1.0], first=[0]), [])
    assert counter.episodes == [Episode(1.0, 1)] * 2
    assert not counter.complete
    counter.add(rows([1.0, 1.0], ended=[1]), [Episode(21.0, 21)])
    counter.add(rows([1.0, 0.0], first=[1]), [])
    counter.add(rows([1.0, 1.0], ended=[1]), [Episode(1.0, 1)])
    assert counter.complete
    assert counter.episodes[2:] == [Episode(21.0, 21), Episode(1.0, 1)]


def test_an_episode_at_the_bound_counts_with_all_its_lives_and_is_the_last_of_its_environment() -> None:
    counter = EpisodeCounter(4, 2, max_steps=3)
    assert counter.add(rows([1.0, 1.0], ended=[0]), [None]) == []  # a life
    assert counter.add(rows([0.0, 1.0], first=[0]), []) == []
    assert counter.add(rows([1.0, 5.0], ended=[1]), [Episode(7.0, 3)]) == [Episode(7.0, 3)]
    assert counter.add(rows([1.0, 0.0], first=[1]), []) == [Episode(3.0, 3)]
    assert (counter.bounded, counter.complete, counter.steps) == (1, False, 6)
    assert counter.add(rows([1.0, 2.0], ended=[1]), [Episode(2.0, 1)]) == [Episode(2.0, 1)]
    assert counter.complete


def test_an_episode_is_that_of_the_environment_that_reported_it() -> None:
    counter = EpisodeCounter(2, 3, MANY)  # the third environment contributes none
    one, other = Episode(1.0, 1, {"is_success": 1.0}), Episode(1.0, 1, {"is_success": 0.0, "score": 3.0})
    with pytest.raises(BeastError):
        counter.add(rows([1.0] * 3, ended=[0, 1, 2]), [one, other])
    assert counter.add(rows([1.0] * 3, ended=[0, 1, 2]), [None, one, other]) == [one]
    assert not counter.complete


def test_runs_are_evaluated_from_seeds_of_their_own_unless_one_is_given() -> None:
    runs = [RunConfig(seed=seed) for seed in range(200)]
    ranges = sorted({run.evaluation_seed for run in runs})
    assert np.diff(ranges).min() > 16 == MAX_ENVS, "no environment of one has the seed of one of another"
    assert len(ranges) == 200
    trained = {assigned(run, group, 0)[1] for run in runs for group in range(64)}
    assert not trained & {seed + env for seed in ranges for env in range(16)}
    given = runs[7].model_copy(update={"evaluate": runs[7].evaluate.model_copy(update={"seed": 1000})})
    assert given.evaluation_seed == 1000


def test_episodes_that_are_asked_for_are_not_those_that_chose_the_best_policy(tmp_path: Path) -> None:
    flags = {"a": (), "b": SEED, "c": SEED}
    folders = [policy_run(tmp_path / name, "ppo", VECTORS, *given) for name, given in flags.items()]
    policies = [load(folder) for folder in folders]
    asked = [with_new_episodes(policy).evaluation_seed for policy in policies]
    chosen = [policy.config.evaluation_seed for policy in policies]
    assert len({*asked, *chosen}) == 4, "runs with one seed of evaluations have one in those that are asked for"
    assert asked[1:] == [asked[1]] * 2
    for seed in (1000, 7):
        assert with_new_episodes(load(folders[1], evaluate={"seed": seed})).evaluation_seed == seed


def test_the_description_has_both_units_and_statistics_over_episodes() -> None:
    found = Evaluation("x", [1.0, 3.0, 5.0, 100.0], [10, 20, 30, 0], False, 1, 4, 500, {"is_success": 0.25})
    result = described(found)
    assert (result["mean_return"], result["iqm_return"], result["min_return"]) == (27.25, 4.0, 1.0)
    assert result["stderr_return"] == pytest.approx(24.2637, abs=1e-4)
    assert (result["mean_length"], result["mean_length_frames"]) == (15, 60)
    assert (result["info/is_success"], result["agent_steps_trained"]) == (0.25, 500)
    assert Evaluation("x", [1.0], [1], True, 1, 1, 0).row()["stderr_return"] is None


SMALL, OTHER = "zipf/Gridworld-small", "CartPole-v1"


@pytest.mark.parametrize(
    ("env", "levels", "found"),
    [
        ("a/One,a/Two,b/Two", "", ["a/One", "a/Two", "b/Two"]),
        ("a/One,a/Two,b/Two", "b/Two, One", ["b/Two", "a/One"]),
        (f"{SMALL}-rare", "uniform,rare,small-rare", [f"{SMALL}-uniform", f"{SMALL}-rare"]),
        (f"{SMALL},zipf/Gridworld", "rare", [f"{SMALL}-rare", "zipf/Gridworld-rare"]),
        (SMALL, f"rar,{OTHER}", None),
        ("a/One,b/One", "One", None),
        (SMALL, f"{OTHER},MinAtar/Breakout,mine:Env", [OTHER, "MinAtar/Breakout", "mine:Env"]),
    ],
)
def test_levels_are_environments_of_the_run_levels_of_these_or_others(
    env: str, levels: str, found: list[str] | None
) -> None:
    config = RunConfig.model_validate({"env": {"id": env}, "evaluate": {"levels": levels}})
    with pytest.raises(ConfigError, match=r"evaluate\.levels") if found is None else nullcontext():
        assert list(evaluated(config)) == found


def test_a_checkpoint_is_named_by_its_number_or_as_the_best(tmp_path: Path) -> None:
    folder = saved(tmp_path, "x")
    for name in ("checkpoints/500.pt", "checkpoints/1000.pt", "best/checkpoint.pt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    assert find("x:500", tmp_path) == tmp_path / "x/checkpoints/500.pt"
    assert find(f"{tmp_path}/x:best") == tmp_path / "x/best/checkpoint.pt"
    for missing in ("x:7", "y:best"):
        with pytest.raises(ConfigError):
            find(missing, tmp_path)
