"""The blocking client against servers that are absent, restarted or wrong."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from tests.build.envservers import running
from zerobeast.clients import env_client
from zerobeast.clients.env_client import EnvClient
from zerobeast.clients.remote import part
from zerobeast.clients.remote.cluster import ClusterVectorEnv
from zerobeast.clients.remote.vector_env import RemoteVectorEnv
from zerobeast.common.errors import ConfigError, PeerLost, RemoteProtocolError
from zerobeast.common.transport import Context
from zerobeast.common.wire.messages import Plane
from zerobeast.common.wire.records import step_record
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.testing.scripted import Client, serving

CARTPOLE = {"id": "CartPole-v1"}
SPEC = EnvSpec("Fake-v0", ArraySpace.box((2,)), ArraySpace.discrete(2))


def test_a_server_that_stays_silent_is_reported_long_before_the_time_is_up(
    ipc: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(env_client, "QUIET_S", 0.1)
    monkeypatch.setattr(part, "SILENCE_S", 0.1)
    with pytest.raises(PeerLost):
        RemoteVectorEnv(ipc, "CartPole-v1", 1, timeout_s=0.4)
    with pytest.raises(PeerLost):
        ClusterVectorEnv([ipc], "CartPole-v1", 1, timeout_s=0.8)
    assert [ipc in message and "0.1 s" in message for message in caplog.messages] == [True, True]


def test_every_answer_is_a_new_array_and_an_action_out_of_range_is_refused(context: Context, ipc: str) -> None:
    with running(ipc), EnvClient(context, ipc, CARTPOLE, 2, seed=0) as client:
        first = client.reset()
        kept = first.copy()
        client.step([0, 1])
        assert (first == kept).all()
        with pytest.raises(ConfigError, match="environment 1"):
            client.step([0, 2])


ROWS = np.zeros(3, step_record(SPEC).dtype)
NUMBERS = ROWS["reward"][:2]


@pytest.mark.parametrize(
    ("infos", "frames", "named"),
    [
        ({}, (b"short",), "OBS"),
        ({}, (), "OBS"),
        ({}, (ROWS,), "OBS"),
        ({1: NUMBERS}, (ROWS[:2],), "info 1"),
        ({"x": NUMBERS, "_x": NUMBERS}, (ROWS[:2],), "info '_x'"),
        ({"x": ROWS["reward"]}, (ROWS[:2],), "info 'x'"),
    ],
)
def test_an_invalid_answer_is_named(
    context: Context, ipc: str, infos: dict[Any, Any], frames: tuple[Any, ...], named: str
) -> None:
    fake = Client(Plane.STEPS, {"env": SPEC.to_wire()}, lambda _asked: (([], infos), frames), lambda *_: nullcontext())
    with serving(fake, ipc, context=context):
        client = EnvClient(context, ipc, {}, 2, seed=0)
        with pytest.raises(RemoteProtocolError, match=named):
            client.reset()
        with pytest.raises(PeerLost):
            client.step([0, 0])
        client.close()
