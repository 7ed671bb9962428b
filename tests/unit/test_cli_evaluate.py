"""Counting whole episodes without bias, and refusing runs that cannot be played."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from zerobeast.api.saved import Episode, EpisodeCounter, Evaluation
from zerobeast.cli.evaluate import describe, main
from zerobeast.common.errors import ConfigError
from zerobeast.common.wire.records import step_record
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec

DTYPE = step_record(EnvSpec("x", ArraySpace.box(()), ArraySpace.discrete(2))).dtype


def rows(
    reward: list[float], *, ended: Sequence[int] = (), cut: Sequence[int] = (), first: Sequence[int] = ()
) -> np.ndarray:
    step = np.zeros(len(reward), DTYPE)
    step["reward"] = reward
    for name, marked in (("terminated", ended), ("truncated", cut), ("first", first)):
        step[name][list(marked)] = True
    return step


@pytest.mark.parametrize(("episodes", "num_envs"), [(1, 1), (10, 10), (10, 3), (16, 16), (100, 16)])
def test_environments_contribute_equally_but_for_the_remainder(episodes: int, num_envs: int) -> None:
    counter, rounds = EpisodeCounter(episodes, num_envs), 0
    while not counter.complete:
        counter.add(rows([1.0] * num_envs, ended=range(num_envs)))
        rounds += 1
    assert (len(counter.episodes), rounds) == (episodes, -(-episodes // num_envs))


def test_returns_and_lengths_are_of_whole_episodes() -> None:
    counter = EpisodeCounter(2, 1)
    assert counter.add(rows([5.0])) == []
    assert counter.add(rows([-1.0], ended=[0])) == [Episode(4.0, 2)]
    assert counter.add(rows([0.0], first=[0])) == [], "the step between two episodes belongs to neither"
    assert counter.add(rows([7.0], cut=[0])) == [Episode(7.0, 1)]
    assert counter.complete
    assert counter.episodes == [Episode(4.0, 2), Episode(7.0, 1)]


def test_short_episodes_do_not_crowd_out_long_ones() -> None:
    counter = EpisodeCounter(4, 2)
    for _ in range(10):  # environment 0 ends an episode every other step, environment 1 none yet
        counter.add(rows([1.0, 1.0], ended=[0]))
        counter.add(rows([0.0, 1.0], first=[0]))
    assert counter.episodes == [Episode(1.0, 1)] * 2
    assert not counter.complete
    counter.add(rows([1.0, 1.0], ended=[1]))
    counter.add(rows([1.0, 0.0], first=[1]))
    counter.add(rows([1.0, 1.0], ended=[1]))
    assert counter.complete
    assert counter.episodes[2:] == [Episode(21.0, 21), Episode(1.0, 1)]


def test_the_description_has_both_units() -> None:
    found = Evaluation("x", [1.0, 3.0], [10, 20], False, 1, frame_skip=4, agent_steps_trained=0)
    result = describe(found)
    assert (result["mean_return"], result["std_return"]) == (2.0, 1.0)
    assert (result["mean_length"], result["mean_length_frames"]) == (15, 60)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ([], "which run"),
        (["--episodes", "3"], "which run"),
        (["nowhere"], "there is no run 'nowhere'"),
        (["x"], "run 'x' has no checkpoint yet"),
        (["x", "--episodes", "none"], "--episodes: got 'none'"),
    ],
)
def test_a_run_that_cannot_be_played_is_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "x" / "config.yaml").write_text("name: x")
    with pytest.raises(ConfigError, match=sentence):
        main(argv)
