"""Programs of others: one steps its own environment, and one that imports nothing of this project serves some."""

import math
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.build.alignment import ROLLOUTS, CountingAlgorithm, N, StubLearner, T, play
from tests.build.envs import Clock
from tests.build.errors import refuses as expected
from tests.build.planes import the_example
from tests.helpers import ROOT, free_port, in_thread, killed_at_last, node, wait_until
from zerobeast.clients.env_client import EnvClient
from zerobeast.clients.own_env import OwnEnv
from zerobeast.clients.policy_client import PolicyClient
from zerobeast.common.config.process import Instance
from zerobeast.common.errors import EnvError, PeerLost, RequestRefused
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import Context, Keys, make_keys
from zerobeast.common.wire.messages import Header, Kind
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.services.broker import sessions
from zerobeast.services.broker.service import Broker

COUNTER = "tests.build.envs:Clock"
ENV = OwnEnv(COUNTER, Clock.observation_space, Clock.action_space)


class Stage:
    """A broker and a learner in threads of their own."""

    def __init__(self, env_id: str, stack: ExitStack, keys: str) -> None:
        places = {role: f"tcp://127.0.0.1:{free_port()}" for role in ("broker", "learner")}
        self.config = RunConfig.model_validate(
            {
                "env": {"id": env_id},
                "broker": {"endpoint": places["broker"], "device": "cpu", "precision": "float32"},
                "learner": {"endpoint": places["learner"], "unroll_length": T},
                "security": {"keys": keys},
            }
        )
        context = Context(Keys(keys, "learner") if keys else None)
        stack.callback(context.term)
        self.learner = StubLearner(context, places["learner"])
        stack.callback(self.learner.close)
        self.learning = stack.enter_context(ExitStack())
        self.learning.enter_context(repeated(self.learner.turn))
        self.broker = stack.enter_context(ExitStack())
        self.keys = keys or None
        self.start_broker()

    def start_broker(self) -> None:
        self.broker.close()
        self.broker.enter_context(in_thread(Broker(self.config, Instance(index=0))))

    def client(self, env: OwnEnv | EnvSpec = ENV, **options: Any) -> PolicyClient:
        settings = {"keys": self.keys, "timeout_s": 60.0, **options}
        return PolicyClient(self.config.broker.endpoint, self.config.learner.endpoint, env, **settings)

    def rollouts(self, agent: int = 0) -> list[np.ndarray]:
        return self.learner.rollouts.get(agent, [])


@contextmanager
def repeated(call: Callable[[], Any]) -> Iterator[None]:
    end = threading.Event()

    def run() -> None:
        while not end.wait(0.001):
            call()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    end.set()
    thread.join(60)


Opener = Callable[..., Stage]


@pytest.fixture
def open_stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    monkeypatch.setattr(sessions, "make_algorithm", CountingAlgorithm)
    with ExitStack() as stack:
        yield lambda env_id=COUNTER, keys="": Stage(env_id, stack, keys)


class Game:
    """One agent, in the environment whose rollouts by an actor are known; the program steps it."""

    def __init__(self, client: PolicyClient, agent: int = 0) -> None:
        self.client, self.agent, self.env = client, agent, Clock()

    def first(self) -> Any:
        return self.env.reset()[0]

    def next(self, action: int) -> tuple[Any, float] | None:
        """The observation and reward after an action; None if it ended the episode."""
        obs, reward, terminated, truncated, _ = self.env.step(action)
        if terminated or truncated:
            self.client.end(obs, reward, terminated=terminated, truncated=truncated, agent=self.agent)
            return None
        return obs, reward

    def play(self, until: Callable[[], Any]) -> None:
        """Play whole episodes until `until` returns something true."""
        while not until():
            action = self.client.start(self.first(), agent=self.agent)
            while step := self.next(action):
                action = self.client.act(*step, agent=self.agent)


def in_step(rollouts: list[np.ndarray]) -> bool:
    """Assert that each answer stands beside its observation, and that the recurrent state belongs to the first one."""
    for rows in rollouts:
        value, first = rows["value"], rows["first"]
        assert (np.where(first[:, 1:-1], 0, value[:, :-1] + 1) == value[:, 1:]).all()
        assert (rows["core_state"][:, 0] == value[:, 0]).all()
        assert (rows["logits"][:, :, 0] == rows["obs"][:, :T, -1]).all()
        assert (rows["logits"][:, :, 1] == np.where(first[:, :T], 0, rows["last_action"][:, :T])).all()
        assert (rows["logits"][:, :, 2] == rows["reward"][:, :T]).all()
        assert (rows["last_action"][:, 1:] == (rows["obs"][:, :T, -1] + 1) % 3).all()
        assert (rows["policy_version"] == 1).all()
    return True


def test_its_rollouts_are_those_of_an_actor_byte_for_byte(tmp_path: Path, open_stage: Opener) -> None:
    (tmp_path / "actor").mkdir()
    actors = play(tmp_path / "actor", {"id": COUNTER}, CountingAlgorithm)
    stage = open_stage()
    with stage.client(agents=2) as client:
        games = [Game(client, agent) for agent in range(2)]
        while min(len(stage.rollouts(agent)) for agent in range(2)) < ROLLOUTS:
            actions = client.start_many({game.agent: game.first() for game in games})
            while steps := {game.agent: step for game in games if (step := game.next(actions[game.agent]))}:
                actions = client.act_many(steps)
    for slot in range(2):
        for theirs, own in zip(actors.rollouts[slot], stage.rollouts(slot), strict=False):
            assert theirs.dtype == own.dtype
            assert [row.tobytes() for row in theirs] == [own[0].tobytes()] * N
    assert {tuple(episode) for episode in stage.learner.episodes} == {tuple(each) for each in actors.episodes}


def test_the_example_in_javascript_sends_what_it_has_observed(open_stage: Opener) -> None:
    stage = open_stage(env_id="Catch-v0")
    places = [stage.config.broker.endpoint, stage.config.learner.endpoint]
    with killed_at_last(subprocess.Popen([node(), ROOT / "docs/examples/catch_game.js", *places, "600"])):
        wait_until(lambda: len(stage.rollouts()) >= ROLLOUTS)
        stage.start_broker()
        wait_until(lambda: len(stage.rollouts()) >= 3 * ROLLOUTS)
    assert in_step(stage.rollouts())
    assert {length for _, length in stage.learner.episodes} == {9}
    assert {value for value, _ in stage.learner.episodes} <= {-1, 1}
    for rows in stage.rollouts():
        np.testing.assert_array_equal(rows["reward"] != 0, rows["terminated"], "a game ends with its only reward")
        ends, ball_at_top = rows["terminated"][:, :-1], rows["obs"][:, 1:, :5].any(-1)
        np.testing.assert_array_equal(rows["first"][:, 1:], ends)
        np.testing.assert_array_equal(ball_at_top, ends, "the first observation of the next game follows")


def test_a_client_waits_while_the_window_is_full_unless_it_drops_and_then_needs_no_learner(open_stage: Opener) -> None:
    stage = open_stage()
    stage.learner.keeps = True
    with stage.client() as client:
        client.timeout_s = 1.0
        with pytest.raises(PeerLost, match="learner at tcp://"):
            Game(client).play(lambda: False)
        assert len(stage.rollouts()) == 1
        stage.learner.rollouts.clear()
    with stage.client(when_full="drop") as client:
        game = Game(client)
        game.play(lambda: client.report()["rollouts_dropped"] >= 3)
        assert len(stage.rollouts()) == 1
        stage.learner.keeps = False
        game.play(lambda: len(stage.rollouts()) >= 4)
        stage.learning.close()
        stream = client.groups[0].rollouts.stream
        stage.learner.rollout_port.send(Header(Kind.BYE, stream.sender, stream.slot, stage.learner.epoch))
        stage.learning.enter_context(repeated(stage.learner.port.welcome))
        game.play(lambda: not stream.open)
        stage.start_broker()
        dropped = client.report()["rollouts_dropped"]
        game.play(lambda: client.report()["rollouts_dropped"] > dropped + 2)
    assert in_step(stage.rollouts())
    steps = T * len(stage.rollouts())
    assert len(stage.learner.episodes) > steps // Clock.LENGTH, "returns of what was dropped are reported"


def test_a_server_that_stays_away_is_an_error_that_a_client_can_survive(tmp_path: Path, open_stage: Opener) -> None:
    make_keys(tmp_path / "keys")
    stage = open_stage(keys=str(tmp_path / "keys"))
    with stage.client() as client:
        game, client.timeout_s = Game(client), 0.5
        action = client.start(game.first())
        step = game.next(action)
        stage.broker.close()
        with pytest.raises(PeerLost, match="broker at tcp://"):
            client.act(*step)
        with pytest.raises(EnvError, match="agent 0"):
            client.act(*step)
        with pytest.raises(PeerLost, match="broker at"):
            client.start(game.first())
        stage.start_broker()
        client.timeout_s = 60.0
        game.play(lambda: len(stage.rollouts()) >= 3)
    assert in_step(stage.rollouts())


def test_bad_calls_are_refused_and_change_nothing(open_stage: Opener) -> None:
    stage = open_stage()
    for argument, value in (("when_full", "block"), ("agents", 0)):
        with expected(argument):
            stage.client(**{argument: value})
    with stage.client(agents=2) as client:
        game = Game(client)
        obs = game.first()

        def refused(named: str, call: Callable[..., Any], *args: Any, **more: Any) -> None:
            with pytest.raises(EnvError, match=named):
                call(*args, **more)

        refused("agent 0", client.act, obs, 1.0)
        refused("agent 0", client.end, obs, 1.0, terminated=True)
        refused("agent", client.start, obs, agent=2)
        refused("obs", client.start, np.zeros(3, np.uint8))
        action = client.start(obs)
        refused("start", client.start, obs)
        obs, reward = game.next(action)
        refused("reward", client.act, obs, np.nan)
        refused("obs", client.act, [300, 0], 1.0)
        refused("mask", client.act, obs, 1.0, mask=[True] * 3)
        refused("terminated", client.end, obs, reward)
        refused("agent 1", client.act_many, {0: (obs, reward), 1: (obs, reward)})
        client.abandon()
        refused("agent 0", client.abandon)
        Game(client).play(lambda: len(stage.rollouts()) >= 2)
    begun, *_ = stage.rollouts()
    assert begun["first"][0, :3].tolist() == [True, True, False], "an episode that was given up is followed by another"
    assert {length for _, length in stage.learner.episodes} == {Clock.LENGTH}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with the_example(f"ipc://{tmp_path_factory.mktemp('f')}/s") as server:
        yield server.endpoint


@pytest.fixture
def envs(context: Context, endpoint: str) -> Iterator[EnvClient]:
    with EnvClient(context, endpoint, {"id": "CartPole-v1"}, num_envs=5, seed=3) as client:
        yield client


def test_episodes_restart_by_the_rule_and_are_reported_whole(envs: EnvClient) -> None:
    obs = envs.reset()["obs"]
    over, steps, ends = np.zeros(5, bool), np.zeros(5, int), 0
    for turn in range(510):
        actions = np.full(5, turn // 7 % 2)
        actions[0] = obs[0] @ np.array([0.05, 0.2, 1.0, 0.4], np.float32) > 0  # this pole is balanced
        rows, episodes, _ = envs.step(actions)
        obs, steps = rows["obs"], np.where(over, 0, steps + 1)
        np.testing.assert_array_equal(rows["first"], over)
        np.testing.assert_array_equal(rows["reward"], np.where(over, 0, 1))
        outside = (np.abs(obs[:, 0]) > 2.4) | (np.abs(obs[:, 2]) > math.radians(12))
        np.testing.assert_array_equal(rows["terminated"], outside & ~over)
        np.testing.assert_array_equal(rows["truncated"], (steps == 500) & ~outside)
        over = rows["terminated"] | rows["truncated"]
        assert sorted(episodes) == sorted((float(n), int(n)) for n in steps[over])
        ends += over.sum()
        assert over[0] == (turn == 499)
    assert ends > 10


def test_a_seed_begins_anew_and_what_it_does_not_have_is_refused(envs: EnvClient) -> None:
    first = envs.reset(seed=7)["obs"]
    assert not np.array_equal(envs.reset()["obs"], first)
    np.testing.assert_array_equal(envs.reset(seed=[7, 8, 9, 10, 11])["obs"], first)
    for asked in ({"options": {}}, {"mask": np.ones(5, bool)}, {"seed": [1]}):
        with pytest.raises(RequestRefused):
            envs.reset(**asked)
    assert envs.step(np.zeros(5))[0]["reward"].all()
