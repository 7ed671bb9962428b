"""Which episodes an evaluation counts, and what becomes of lost ones, here and while a run trains."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.build.batches import VECTORS
from tests.build.envs import COUNTER, ON_PURPOSE
from tests.build.folders import policy_run, save_run
from zerobeast.api.policies import find_policy, load, reseed_evaluations
from zerobeast.cli.evaluate import evaluation_to_dict
from zerobeast.common.errors import BeastError, ConfigError, RemoteProtocolError
from zerobeast.common.files import metrics
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire import ArraySpace, EnvSpec, step_record
from zerobeast.common.wire import episodes as wire
from zerobeast.common.wire.episodes import Episode, LostEpisode, ends_of, limit_infos, read_lost
from zerobeast.common.wire.messages import Header, Kind, pack_header
from zerobeast.playing.evaluation import Evaluation
from zerobeast.playing.play import MAX_ENVS, EpisodeCounter
from zerobeast.services.actor.service import assign_group
from zerobeast.services.envserver.levels import evaluation_envs
from zerobeast.services.envserver.sessions import MAX_ENVS_PER_SESSION
from zerobeast.services.learner.episodes import LostEpisodes
from zerobeast.services.learner.meters import Meters
from zerobeast.services.learner.queue import Message
from zerobeast.testing.sessions import session

SEED = ("--evaluate.seed=1000",)
MANY = 1000  #: steps
STEP = step_record(EnvSpec("x", ArraySpace.box(()), ArraySpace.discrete(2))).dtype


def rows(reward: list[float], *, ended: Sequence[int] = (), first: Sequence[int] = ()) -> np.ndarray:
    """One step of N environments: which of them ended, or began."""
    step = np.zeros(len(reward), STEP)
    step["reward"] = reward
    step["terminated"][list(ended)] = step["first"][list(first)] = True
    return step


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
    trained = {assign_group(run, group, 0)[1] for run in runs for group in range(64)}
    assert not trained & {seed + env for seed in ranges for env in range(16)}
    given = runs[7].model_copy(update={"evaluate": runs[7].evaluate.model_copy(update={"seed": 1000})})
    assert given.evaluation_seed == 1000


def test_episodes_that_are_asked_for_are_not_those_that_chose_the_best_policy(tmp_path: Path) -> None:
    flags = {"a": (), "b": SEED, "c": SEED}
    folders = [policy_run(tmp_path / name, "ppo", VECTORS, *given) for name, given in flags.items()]
    policies = [load(folder) for folder in folders]
    asked = [reseed_evaluations(policy).evaluation_seed for policy in policies]
    chosen = [policy.config.evaluation_seed for policy in policies]
    assert len({*asked, *chosen}) == 4, "runs with one seed of evaluations have one in those that are asked for"
    assert asked[1:] == [asked[1]] * 2
    for seed in (1000, 7):
        assert reseed_evaluations(load(folders[1], evaluate={"seed": seed})).evaluation_seed == seed


def test_the_description_has_both_units_and_statistics_over_episodes() -> None:
    found = Evaluation("x", [1.0, 3.0, 5.0, 100.0], [10, 20, 30, 0], False, 1, 4, 500, {"is_success": 0.25})
    result = evaluation_to_dict(found)
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
def test_levels_are_envs_of_the_run_levels_of_these_or_others(env: str, levels: str, found: list[str] | None) -> None:
    config = RunConfig.model_validate({"env": {"id": env}, "evaluate": {"levels": levels}})
    with pytest.raises(ConfigError, match=r"evaluate\.levels") if found is None else nullcontext():
        assert list(evaluation_envs(config)) == found


def test_a_checkpoint_is_named_by_its_number_or_as_the_best(tmp_path: Path) -> None:
    folder = save_run(tmp_path, "x")
    for name in ("checkpoints/500.pt", "checkpoints/1000.pt", "best/checkpoint.pt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    assert find_policy("x:500", tmp_path) == tmp_path / "x/checkpoints/500.pt"
    assert find_policy(f"{tmp_path}/x:best") == tmp_path / "x/best/checkpoint.pt"
    for missing in ("x:7", "y:best"):
        with pytest.raises(ConfigError):
            find_policy(missing, tmp_path)


ZERO = "ZeroDivisionError: division by zero (walk.py:9)"


def test_lost_episodes_travel_beside_the_ends_and_some_of_them_name_their_reason() -> None:
    several = [[ZERO, row] for row in range(MAX_ENVS_PER_SESSION)]
    entries = limit_infos([[1.0, 2], *several, []])
    most = wire.MAX_REASONS
    assert entries == [[1.0, 2], *several[:most], *(["", row] for _, row in several[most:]), []]
    assert ends_of(entries, pytest.fail) == (Episode(1.0, 2), None)
    assert read_lost(entries) == tuple(LostEpisode(ZERO, row) for row in range(MAX_ENVS_PER_SESSION))
    longest = limit_infos([["é" * wire.MAX_REASON, env] for env in range(MAX_ENVS_PER_SESSION)])
    pack_header(Header(Kind.OBS, 7, 0, 5, 3, (longest, None)))


@pytest.mark.parametrize("one", [["x" * (wire.MAX_REASON + 1), 0], ["\x1b[2J", 0], ["x", -1], ["x", True]])
def test_a_malformed_one_is_counted_and_ignored(one: Any) -> None:
    refused: list[RemoteProtocolError] = []
    assert read_lost([one]) == ()
    assert ends_of([one, [1.0, 2]], refused.append) == (None, Episode(1.0, 2))
    assert len(refused) == 1


def test_of_too_many_infos_those_of_evenly_spaced_episodes_travel() -> None:
    few = [[float(env), 1, {"x": 1.0}] for env in range(wire.MAX_NUMBERS)]
    assert limit_infos(few) == few
    many = [[float(env), 1, *([{str(name): 1.0 for name in range(20)}] if env % 3 else [])] for env in range(90)]
    found = limit_infos(many)
    assert [entry[:2] for entry in found] == [entry[:2] for entry in many]
    having = [env for env, entry in enumerate(found) if len(entry) > 2]
    assert len(having) == wire.MAX_NUMBERS // 20
    assert max(np.diff([0, *having, 90])) <= 6


def test_an_environment_that_raises_reports_which_episode_it_costs_and_where_it_raised() -> None:
    with session(COUNTER, {"kwargs": {"raise_at": 2}}, envs=2) as env:
        env.reset()
        for expected in ([], [0, 1], []):
            env.step(np.array([1, 1]))
            lost = read_lost(env.episodes)
            assert [each.row for each in lost] == expected
            assert all(each.reason.startswith(f"RuntimeError: {ON_PURPOSE} (envs.py:") for each in lost)
        env.reset()
        assert env.episodes == []


def test_the_most_frequent_reason_is_named_whatever_values_it_has() -> None:
    lost = LostEpisodes()
    lost.add(ZERO)
    for value in range(3):
        lost.add(f"an observation is [nan 0.{value}], expected finite numbers (walk.py:12)")
    assert lost.reason == "an observation is [nan 0.2], expected finite numbers (walk.py:12), and others"
    again = LostEpisodes()
    again.load(lost.state())
    assert (again.count, again.reason) == (4, lost.reason)


def test_too_many_lost_episodes_are_a_sentence_and_few_never_are() -> None:
    lost = LostEpisodes()
    for _ in range(100):
        lost.add(ZERO)
    assert not lost.excess(0.1), "a process that was killed costs the episodes of all its environments"
    lost.add(ZERO)
    assert lost.excess(0.1).startswith(f"101 of the last 101 episodes were lost to {ZERO}: expected at most 100")
    for _ in range(950):
        lost.note_end()
    assert not lost.excess(0.1), "the newest count"
    assert not lost.excess(1.0)


def test_the_learner_counts_what_was_begun_what_ended_and_what_is_lost() -> None:
    meters = Meters(["CartPole-v1"])
    episodes, lost = (Episode(1.0, 2), Episode(2.0, 3)), (LostEpisode(ZERO, 0),)
    meters.count_finished([Message(7, 0, 1, rollouts=8, episodes=episodes, lost=lost), Message(7, 0, 2, rollouts=8)])
    page = meters.page(0.0)
    assert (page["episodes_begun"], page["episodes"], page["episodes_lost"]) == (8 + 3, 2, 1)
    assert page["lost_to"] == ZERO
    other = Meters(["CartPole-v1"])
    other.load(meters.state())
    assert other.page(0.0)["episodes_begun"] == 11


def test_an_evaluation_plays_lost_episodes_again_and_counts_them() -> None:
    counter = EpisodeCounter(2, 2, MANY)
    counter.add(rows([1.0, 1.0], ended=[0]), [Episode(1.0, 1)])
    for lost in (1, 2):  # the second one in its first step
        assert counter.add(rows([0.0, 0.0], first=[0, 1]), [], [LostEpisode(ZERO, 1)]) == []
        assert (counter.lost, counter.reason, counter.complete) == (lost, ZERO, False)
    assert counter.add(rows([5.0, 3.0], ended=[1]), [Episode(3.0, 1)]) == [Episode(3.0, 1)], "without the lost part"
    counter.add(rows([0.0, 0.0], first=[0, 1]), [])
    assert (counter.lost, counter.complete) == (2, True), "those beyond an environment's share do not count"


def test_an_evaluation_is_given_up_once_more_episodes_are_lost_than_were_asked_for() -> None:
    counter = EpisodeCounter(1, 1, MANY)
    counter.add(rows([1.0]), [])
    counter.add(rows([0.0], first=[0]), [], [LostEpisode(ZERO, 0)])
    counter.add(rows([1.0]), [])
    with pytest.raises(BeastError):
        counter.add(rows([0.0], first=[0]), [])


def test_the_folder_of_a_run_tells_how_many_are_lost_and_why(tmp_path: Path) -> None:
    assert metrics.describe_lost_episodes(tmp_path) == ""
    (tmp_path / "metrics.csv").write_text("agent_steps,episodes,episodes_lost\n100,27,573\n")
    (tmp_path / "lost").write_text(ZERO)
    assert metrics.describe_lost_episodes(tmp_path) == f"573 of 600 episodes were lost to {ZERO}"
