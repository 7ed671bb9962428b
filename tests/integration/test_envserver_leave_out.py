"""Entries of observations that cannot be sent, or are not wanted, are left out on every path."""

from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, Sequence, Text, Tuple

from tests.build.envservers import running
from zerobeast import ConfigError, Context, EnvError, OwnEnv, RemoteVectorEnv
from zerobeast.common.settings import EnvConfig, RunConfig
from zerobeast.services.envserver.check import look
from zerobeast.services.envserver.spaces import arrays
from zerobeast.testing.sessions import Session, session

TALKING = "tests.integration.test_envserver_leave_out:Talking"
NUMBER, TEXT = Box(0, 9, (2,), np.float32), Text(9)


class Talking(gymnasium.Env[Any, Any]):
    action_space = Discrete(2)

    def __init__(self, kind: type = Dict) -> None:
        graph = Graph(NUMBER, None)
        log = Tuple((TEXT, NUMBER, NUMBER)) if kind is Tuple else Dict(text=TEXT, seen=NUMBER)
        self.observation_space = Dict({"mission": TEXT, "others": Sequence(NUMBER), "map": graph, "log": log})

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**given)
        return self.observation_space.sample(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 1.0, bool(action), False, {}


class InTuple(Talking):
    def __init__(self) -> None:
        super().__init__(Tuple)


class Talking2(Talking): ...


UNWANTED = ("mission", "others", "map")


@pytest.mark.parametrize("env_id", [TALKING, f"uniform({TALKING},{TALKING}2)"])
def test_what_cannot_be_sent_is_named_with_the_way_out_until_nothing_is_left_of_it(env_id: str) -> None:
    left_out = list[str]()
    for entry in ("log.text", "map", "mission", "others"):
        with pytest.raises(EnvError, match=rf"env.leave_out {entry} "):
            Session(env_id, {"leave_out": left_out}, envs=2)
        left_out.append(entry)
    with session(env_id, {"leave_out": left_out}, envs=2) as envs:
        envs.reset()
        rows = envs.step(np.array([0, 1]))
        assert rows["obs"].dtype.names == ("log",)
        assert rows["obs"]["log"]["seen"].all()


@pytest.mark.parametrize(
    ("env_id", "left_out", "named"),
    [
        (TALKING, "mision", "log, map, mission, others, log.text, log.seen"),
        (TALKING, "mission,others,map,log", "of the observation"),
        (TALKING, "log.text,log.seen", "left of log"),
        ("ALE/Pong-v5", "mission", r"env\.leave_out"),
        ("CartPole-v1", "mission", r"env\.leave_out"),
    ],
)
def test_other_entries_are_refused(env_id: str, left_out: str, named: str) -> None:
    with pytest.raises(EnvError, match=named):
        Session(env_id, {"leave_out": left_out}, envs=1)


def test_the_rest_of_a_tuple_is_a_dict_by_number_in_which_tuples_are_read() -> None:
    left_out = (*UNWANTED, "log.0")
    env = EnvConfig(id=f"{__name__}:InTuple", leave_out=left_out)
    spec, *_ = look(RunConfig(env=env), env.id)
    own = OwnEnv("Talking-v0", InTuple().observation_space, Discrete(2), leave_out=left_out)
    assert own.spec.obs == spec.obs
    seen = InTuple().reset(seed=1)[0]
    row = own.row(seen)
    np.testing.assert_array_equal(row["obs"]["log"]["2"][0], seen["log"][2])
    assert [path for path, *_ in arrays("obs", spec.obs, seen)] == ["obs.log.1", "obs.log.2"], "as policies read them"


def test_remote_environments_leave_out_what_they_are_asked_to(context: Context, ipc: str) -> None:
    with running(ipc, in_process=True):
        with pytest.raises(ConfigError, match=r"env\.leave_out log\.text"):
            RemoteVectorEnv(ipc, TALKING, 2, context=context)
        terms = {"leave_out": [*UNWANTED, "log.text"]}
        with closing(RemoteVectorEnv(ipc, TALKING, 2, env=terms, context=context)) as envs:
            assert list(envs.reset()[0]) == ["log"]


def test_names_and_numbers_of_entries_have_limits_with_a_sentence() -> None:
    for space, sentence in (
        (Dict({"a/b": NUMBER}), "'a/b', expected each name once, of 1 to 64 characters without /"),
        (Dict({f"entry{i}": NUMBER for i in range(65)}), "65, expected 1 to 64 of them"),
    ):
        with pytest.raises(EnvError, match=sentence):
            OwnEnv("Many-v0", space, Discrete(2))
        OwnEnv("Many-v0", Dict({"kept": NUMBER, **space.spaces}), Discrete(2), leave_out=list(space.spaces)[:2])
