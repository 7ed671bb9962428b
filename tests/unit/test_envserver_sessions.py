"""What clients may ask of an env-server, whether there is room for it, and which sessions a turn attends to."""

from types import SimpleNamespace
from typing import Any

import pytest

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.settings.run import EnvServerConfig
from zerobeast.common.wire.messages import Header, Kind
from zerobeast.common.wire.session import Session
from zerobeast.services.envserver.sessions import (
    MAX_ENVS_PER_SESSION,
    MAX_IN_THE_MAKING,
    MAX_SESSIONS,
    Hosted,
    SessionRequest,
    check_capacity,
    sessions_to_advance,
)

GOOD: dict[str, Any] = {"env": {"id": "CartPole-v1"}, "num_envs": 2, "seed": 3}
AGENTS = {"env": {"id": "A", "agents": 3}}
LONG = "A" * 10_000
SETTINGS = EnvServerConfig(max_envs=100, max_workers=10)
HELLO = Header(Kind.HELLO, 1)


def test_good_terms_are_read() -> None:
    terms = SessionRequest.read(GOOD)
    assert (terms.env.id, terms.num_envs, terms.seed) == ("CartPole-v1", 2, 3)


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
    with pytest.raises(RemoteProtocolError) as caught:
        SessionRequest.read({**GOOD, **change})
    assert caught.value.reason == "terms"
    assert str(caught.value).startswith(entry)
    assert len(str(caught.value)) < 1000


def env(num_envs: int = 1, processes: int = 0) -> Any:
    return SimpleNamespace(num_envs=2 * num_envs, agents=2, processes=processes)


@pytest.mark.parametrize(
    ("num_envs", "hosted", "leaving", "has_room"),
    [
        (100, [], [], True),
        (40, [env(30), env(30)], [], True),
        (41, [env(30), env(30)], [], False),
        (1, [env(0)] * (MAX_SESSIONS - 1), [], True),
        (1, [env(0)] * MAX_SESSIONS, [], False),
        (1, [env(4, 4), env(5, 5)], [], True),
        (1, [env(5, 5), env(5, 5)], [], False),
        (1, [env(5, 5)], [env(5, 5)], False),  # processes count until they have ended
    ],
)
def test_environments_sessions_and_processes_have_limits(
    num_envs: int, hosted: list[Any], leaving: list[Any], has_room: bool
) -> None:
    if has_room:
        check_capacity(num_envs, SETTINGS, hosted=hosted, leaving=leaving)
        return
    with pytest.raises(RemoteProtocolError) as caught:
        check_capacity(num_envs, SETTINGS, hosted=hosted, leaving=leaving)
    assert caught.value.reason == "busy"


def session(at: float, *, inline: bool, made: bool = False) -> Session[Hosted]:
    kind: Any = SimpleNamespace(inline=inline)
    return Session(1, 0, Hosted(kind, None if made else HELLO), opened_at=at, welcome={} if made else None)


def test_sessions_that_are_made_always_advance_and_before_those_that_are_not() -> None:
    made = [session(at, inline=True, made=True) for at in range(20)]
    assert sessions_to_advance(made) == made
    new = session(-1, inline=True)
    assert sessions_to_advance([new, *made]) == [*made, new]


def test_few_sessions_of_processes_and_one_of_the_thread_are_made_in_order_of_arrival() -> None:
    apart = [session(at, inline=False) for at in range(MAX_IN_THE_MAKING + 5)]
    inline = [session(at, inline=True) for at in range(3)]
    assert sessions_to_advance([*reversed(inline), *reversed(apart)]) == [*apart[:MAX_IN_THE_MAKING], inline[0]]
    needed_for_steps = sessions_to_advance([*inline, *apart], make=False)
    assert needed_for_steps == apart[:MAX_IN_THE_MAKING]


def test_the_loop_does_not_wait_for_messages_while_it_has_environments_to_make() -> None:
    assert session(0, inline=True).state.has_inline_work
    assert not session(0, inline=True, made=True).state.has_inline_work
    assert not session(0, inline=False).state.has_inline_work
