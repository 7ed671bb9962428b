"""Which environment a broker serves, before anything is learned of one."""

from typing import Any

import pytest
import torch

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.common.wire.messages import Header, Kind
from zerobeast.common.wire.session import YIELDS_S, Session
from zerobeast.services.broker.sessions import Client, Sessions

OURS, THEIRS = (EnvSpec("E-v0", ArraySpace.box((size,)), ArraySpace.discrete(2)) for size in (4, 5))


@pytest.fixture
def sessions() -> Sessions:
    config = RunConfig.model_validate({"env": {"id": "E-v0"}})
    return Sessions(config, 1, device=torch.device("cpu"), dtype=torch.float32, seed=1)


def greet(sessions: Sessions, env: EnvSpec, sender: int, now: float, **more: Any) -> Session[Client] | None:
    """The session that a HELLO gets; None if the sender is asked to come again."""
    slot = int(now)
    try:
        _, rows = sessions.agree({"num_envs": 1, "env": env.to_wire()}, now, settled=False, **more)
    except RemoteProtocolError:
        return None
    return sessions.admit(Header(Kind.HELLO, sender, slot), rows, now)


def test_requests_without_weights_do_not_keep_another_environment_out(sessions: Sessions) -> None:
    for second in range(int(YIELDS_S) + 2):
        if stranger := greet(sessions, THEIRS, 7, second, served=False):
            stranger.asked_at = second
        if admitted := greet(sessions, OURS, 9, second + 0.5, served=False):
            break
    assert admitted


def test_a_client_that_has_just_come_is_one_that_is_there(sessions: Sessions) -> None:
    first = greet(sessions, OURS, 1, 0.0, served=True)
    assert first
    first.asked_at = 1.0
    assert greet(sessions, OURS, 2, 100.0, served=True)
    assert greet(sessions, THEIRS, 7, 100.5, served=True) is None
    assert greet(sessions, THEIRS, 7, 100.5 + YIELDS_S, served=True)
