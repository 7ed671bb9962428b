"""What clients may ask of an env-server, whether there is room for it, and which sessions a turn attends to."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests.build.errors import refuses
from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.settings.run import EnvServerConfig
from zerobeast.common.wire.messages import Header, Kind
from zerobeast.common.wire.session import Session
from zerobeast.services.envserver import sessions
from zerobeast.services.envserver.sessions import MAX_ENVS_PER_SESSION, HostedEnvs, SessionRequest, sessions_to_advance

GOOD: dict[str, Any] = {"env": {"id": "CartPole-v1"}, "num_envs": 2, "seed": 3}
AGENTS = {"env": {"id": "A", "agents": 3}}
LONG = "A" * 10_000
SETTINGS = EnvServerConfig(max_envs=100, max_workers=10)
HELLO = Header(Kind.HELLO, 1)


@pytest.mark.parametrize(
    ("change", "entry"),
    [
        *(({"num_envs": wrong}, "num_envs") for wrong in (0, MAX_ENVS_PER_SESSION + 1, True, None)),
        *(({"seed": wrong}, "seed") for wrong in (-1, 2**31, 1.5)),
        ({"infos": 1}, "infos"),
        ({"env": None}, "env"),
        *(({"env": {"id": wrong}}, "env.id") for wrong in ("", LONG * 6, "A" + "," * 60_000)),
        *(({"env": {"id": LONG, "frame_skip": wrong}}, "env.frame_skip") for wrong in (0, LONG)),
        ({"env": {"id": "A", "frame_skp": 4}}, "env.frame_skp"),
        ({"env": {"id": "A", "kwargs": {1: 2}}}, "env.kwargs"),
        ({"env": {f"k{i}": 1 for i in range(7000)}}, "env"),
        (AGENTS | {"num_envs": 4}, "num_envs"),  # no whole environments
        (AGENTS | {"num_envs": 6, "reset_masks": True}, "reset_masks"),
    ],
)
def test_bad_terms_are_refused_with_the_entry_named(change: dict[str, Any], entry: str) -> None:
    terms = SessionRequest.read(GOOD)
    assert (terms.env.id, terms.num_envs, terms.seed) == ("CartPole-v1", 2, 3)
    with refuses(kind=RemoteProtocolError, reason="terms") as caught:
        SessionRequest.read({**GOOD, **change})
    assert str(caught.error).startswith(entry)
    assert len(str(caught.error)) < 1000


def env(num_envs: int = 1, processes: int = 0) -> Any:
    return SimpleNamespace(num_envs=2 * num_envs, agents=2, processes=processes)


@pytest.mark.parametrize(
    ("num_envs", "hosted", "leaving", "has_room"),
    [
        (40, [env(30), env(30)], [], True),
        (41, [env(30), env(30)], [], False),
        (1, [env(0)] * (sessions.MAX_SESSIONS - 1), [], True),
        (1, [env(0)] * sessions.MAX_SESSIONS, [], False),
        (1, [env(4, 4), env(5, 5)], [], True),
        (1, [env(5, 5), env(5, 5)], [], False),
        (1, [env(5, 5)], [env(5, 5)], False),  # processes count until they have ended
    ],
)
def test_environments_sessions_and_processes_have_limits(
    num_envs: int, hosted: list[Any], leaving: list[Any], has_room: bool
) -> None:
    with nullcontext() if has_room else refuses(kind=RemoteProtocolError, reason="busy"):
        sessions.check_capacity(num_envs, SETTINGS, hosted=hosted, leaving=leaving)


def session(at: float, *, inline: bool, made: bool = False) -> Session[HostedEnvs]:
    kind: Any = SimpleNamespace(inline=inline)
    return Session(1, 0, HostedEnvs(kind, None if made else HELLO), opened_at=at, welcome={} if made else None)


def test_sessions_that_are_made_advance_before_a_few_that_are_not_in_order_of_arrival() -> None:
    most = sessions.MAX_IN_THE_MAKING
    made = [session(at, inline=True, made=True) for at in range(20)]
    apart = [session(at, inline=False) for at in range(most + 5)]
    inline = [session(at, inline=True) for at in range(-1, 3)]
    assert sessions_to_advance([inline[0], *made]) == [*made, inline[0]]
    assert sessions_to_advance([*reversed(inline), *reversed(apart)]) == [*apart[:most], inline[0]]
    assert sessions_to_advance([*inline, *apart], make=False) == apart[:most], "what steps do not wait for"
    waits = [each.state.has_inline_work for each in (inline[0], made[0], apart[0])]
    assert waits == [True, False, False], "the loop waits for messages unless it has an environment to make"
