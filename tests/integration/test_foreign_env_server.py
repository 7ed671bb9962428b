"""docs/protocol.md put to the test: a program that imports nothing of this project serves environments to it."""

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import free_port, killed_at_last
from zerobeast.clients import env_session
from zerobeast.clients.env_client import EnvClient
from zerobeast.common.errors import Refused
from zerobeast.common.transport import Context
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec

SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "foreign_env_server.py"
ENV = {"id": "CartPole-v1"}
SPEC = EnvSpec("CartPole-v1", ArraySpace.box((4,)), ArraySpace.discrete(2))


@pytest.fixture(scope="module", params=["ipc", "tcp"])
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of the example, run as its first lines say, in a process that cannot import this project."""
    endpoint = f"ipc://{tmp_path_factory.mktemp('f')}/s" if request.param == "ipc" else f"tcp://127.0.0.1:{free_port()}"
    command = [sys.executable, "-I", str(SCRIPT), endpoint]
    server = subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with killed_at_last(server):
        yield endpoint
        assert server.poll() is None, server.communicate()[0]


@pytest.fixture
def envs(context: Context, endpoint: str) -> Iterator[EnvClient]:
    with EnvClient(context, endpoint, ENV, num_envs=5, seed=3) as client:
        yield client


def test_the_example_is_short_and_imports_nothing_of_this_project() -> None:
    text = SCRIPT.read_text()
    assert len(text.splitlines()) <= 110
    imported = {line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert imported - set(sys.stdlib_module_names) == {"msgpack", "zmq"}


def test_the_physics_are_those_of_gymnasium(envs: EnvClient) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    twins = [gymnasium.make("CartPole-v1").unwrapped for _ in range(envs.num_envs)]
    rows = envs.reset()
    assert envs.spec == SPEC
    assert (np.abs(rows["obs"]) <= 0.05).all()
    assert len({tuple(obs) for obs in rows["obs"].tolist()}) == 5, "each environment has its own seed"
    for twin, obs in zip(twins, rows["obs"], strict=True):
        twin.reset()
        twin.state = obs.astype(np.float64)
    generator = np.random.default_rng(0)
    for _ in range(8):
        actions = generator.integers(0, 2, envs.num_envs)
        rows, *_ = envs.step(actions)
        found = np.stack([twin.step(int(action))[0] for twin, action in zip(twins, actions, strict=True)])
        np.testing.assert_allclose(rows["obs"], found, rtol=0, atol=1e-5)


def test_episodes_restart_by_the_rule_and_are_reported_whole(envs: EnvClient) -> None:
    rows = envs.reset()
    over = np.zeros(5, bool)
    steps = np.zeros(5, int)
    reported = []
    for turn in range(300):
        rows, episodes, _ = envs.step(np.full(5, turn // 7 % 2))
        np.testing.assert_array_equal(rows["first"], over)
        np.testing.assert_array_equal(rows["reward"], np.where(over, 0, 1))
        steps = np.where(over, 0, steps + 1)
        outside = (np.abs(rows["obs"][:, 0]) > 2.4) | (np.abs(rows["obs"][:, 2]) > math.radians(12))
        np.testing.assert_array_equal(rows["terminated"], outside)
        assert not (rows["terminated"] & over).any()
        over = rows["terminated"] | rows["truncated"]
        assert sorted(episodes) == sorted((float(n), int(n)) for n in steps[over])
        reported += episodes
    assert len(reported) > 10


def test_a_balanced_pole_is_truncated_after_500_steps(envs: EnvClient) -> None:
    rows = envs.reset()
    ends = []
    for _ in range(502):
        lean = rows["obs"] @ np.array([0.05, 0.2, 1.0, 0.4], np.float32)
        rows, episodes, _ = envs.step((lean > 0).astype(int))
        ends += episodes
        if rows["truncated"].any():
            assert not rows["terminated"].any()
            assert rows["reward"].all()
    assert ends == [(500.0, 500)] * 5
    assert not rows["first"].any()


def test_what_it_does_not_have_is_refused(context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused):
        EnvClient(context, endpoint, {"id": "PongNoFrameskip-v4"}, num_envs=1, seed=0)
    with EnvClient(context, endpoint, ENV, num_envs=2, seed=0) as client:
        client.reset()
        monkeypatch.setattr(env_session, "fill_actions", lambda into, _, actions: np.copyto(into, actions))  # unchecked
        with pytest.raises(Refused):
            client.step([0, 7])


def test_a_reset_may_have_seeds_but_neither_options_nor_a_mask(envs: EnvClient) -> None:
    first = envs.reset(seed=7)["obs"]
    assert not np.array_equal(envs.reset()["obs"], first)
    np.testing.assert_array_equal(envs.reset(seed=[7, 8, 9, 10, 11])["obs"], first)
    for asked in ({"options": {}}, {"mask": np.ones(5, bool)}, {"seed": [1]}):
        with pytest.raises(Refused):
            envs.reset(**asked)
    assert envs.step(np.zeros(5))[0]["reward"].all()
