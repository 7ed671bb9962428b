"""Settings that change what environments show: `env.options` with the progress of a run, and `env.leave_out`."""

from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, Sequence, Text, Tuple

from tests.build.envs import STAGED
from tests.build.groups import CONFIG, SERVERS, Broker, EnvServer, Learner, Message, Play
from tests.build.planes import run_env_server
from tests.build.streams import ListedRun
from zerobeast import ConfigError, Context, EnvError, OwnEnv, RemoteVectorEnv
from zerobeast.common.settings import EnvConfig, EnvServerConfig, RunConfig
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.services.envserver.catalogue import make_vector_env
from zerobeast.services.envserver.env_check import check_env
from zerobeast.services.envserver.spaces import split_arrays
from zerobeast.services.learner.ledger import SavedLedger
from zerobeast.testing.sessions import Session, session

OPTIONS = {"stage": ["{progress}"], "fixed": 7}


@pytest.mark.parametrize("apart", [False, True])
def test_every_reset_has_the_options_and_the_progress_of_that_time(apart: bool) -> None:
    with session(STAGED, {"options": OPTIONS}, envs=2, apart=apart) as envs:
        envs.env.progress = 0.25
        assert envs.reset()["obs"].tolist() == [[0.25, 7]] * 2
        for progress in (0.5, 0.75, 1.0):
            envs.env.progress = progress
            envs.step()  # the last of an episode
            assert envs.step()["obs"].tolist() == [[progress, 7]] * 2
        assert envs.reset(options={"fixed": 3})["obs"].tolist() == [[-1, 3]] * 2, "instead of those of the setting"


def test_a_client_that_trains_nothing_has_all_progress(context: Context, ipc: str) -> None:
    with run_env_server(ipc, in_process=True):
        envs = RemoteVectorEnv(ipc, STAGED, 1, env={"options": OPTIONS}, context=context)
        assert envs.reset()[0].tolist() == [[1, 7]]
        envs.close()
    env = make_vector_env(EnvConfig(id="CartPole-v1", options={"low": -0.01, "high": 0.0}), 4, 0, EnvServerConfig())
    assert env.processes == 1
    env.close()


class HalfDone(Learner):
    def terms(self) -> dict[str, Any]:
        return super().terms() | {"progress": 0.25}

    def message(self, kind: Kind, seq: int, body: tuple[Any, ...], *frames: np.ndarray) -> Message:
        return super().message(kind, seq, (*body, 0.5) if kind is Kind.ACK else body, *frames)


class Noting(EnvServer):
    def do(self, header: Header, rows: Any) -> Message:
        noted.append(header.body[-1])
        return super().do(header, rows)


noted: list[float | None] = []
KINDS = {Plane.STEPS: Noting, Plane.INFERENCE: Broker, Plane.ROLLOUTS: HalfDone}


@pytest.mark.parametrize("follows", [True, False])
def test_an_actor_passes_on_the_learners_progress_if_its_environments_follow_it(follows: bool) -> None:
    noted.clear()
    env = CONFIG.env.model_copy(update={"options": OPTIONS if follows else {"fixed": 7}})
    kinds = KINDS if follows else SERVERS | {Plane.STEPS: Noting}
    play = Play(config=CONFIG.model_copy(update={"env": env}), kinds=kinds)
    play.goes_on()
    assert ("progress" in play.group.rollouts.stream.hello_terms) is follows
    assert (noted[0], noted[-1]) == ((0.25, 0.5) if follows else (None, None))


def test_the_learner_sends_progress_to_those_that_ask() -> None:
    run = ListedRun({1: 1, 2: 1}, batch=2, window=1)
    run.outboxes[1].stream.hello_terms["progress"] = True
    run.start(1, SavedLedger())
    run.intake.progress = lambda: 0.75
    run.exchange()
    assert (run.outboxes[1].progress, run.outboxes[2].progress) == (0.75, None)


TALKING = "tests.integration.test_envserver_options:Talking"
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
    spec, *_ = check_env(RunConfig(env=env), env.id)
    own = OwnEnv("Talking-v0", InTuple().observation_space, Discrete(2), leave_out=left_out)
    assert own.spec.obs == spec.obs
    seen = InTuple().reset(seed=1)[0]
    row = own.row(seen)
    np.testing.assert_array_equal(row["obs"]["log"]["2"][0], seen["log"][2])
    assert [path for path, *_ in split_arrays("obs", spec.obs, seen)] == ["obs.log.1", "obs.log.2"], "for policies"


def test_remote_environments_leave_out_what_they_are_asked_to(context: Context, ipc: str) -> None:
    with run_env_server(ipc, in_process=True):
        with pytest.raises(ConfigError, match=r"env\.leave_out log\.text"):
            RemoteVectorEnv(ipc, TALKING, 2, context=context)
        terms = {"leave_out": [*UNWANTED, "log.text"]}
        with closing(RemoteVectorEnv(ipc, TALKING, 2, env=terms, context=context)) as envs:
            assert list(envs.reset()[0]) == ["log"]
