"""`env.options` reach every reset, and the progress of a run takes the place of "{progress}" in them."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from tests.build.envservers import running
from tests.build.groups import CONFIG, SERVERS, Broker, EnvServer, Learner, Message, Play
from tests.build.streams import ListedRun
from zerobeast import Context, RemoteVectorEnv
from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.services.envserver.catalogue import make_vector_env
from zerobeast.services.learner.ledger import SavedLedger
from zerobeast.testing.sessions import session

STAGED = "tests.integration.test_envserver_options:Staged"
OPTIONS = {"stage": ["{progress}"], "fixed": 7}


class Staged(gymnasium.Env[Any, Any]):
    """Each episode takes one step; observations are its options."""

    observation_space, action_space = Box(-9, 9, (2,), np.float32), Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        asked = {"stage": [-1], "fixed": -1} | (options or {})
        self.seen = np.array([*asked["stage"], asked["fixed"]], np.float32)
        return self.seen, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.seen, 0.0, True, False, {}


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


def test_a_client_that_trains_nothing_has_all_progress_and_single_environments_take_options(
    context: Context, ipc: str
) -> None:
    with running(ipc, in_process=True):
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
