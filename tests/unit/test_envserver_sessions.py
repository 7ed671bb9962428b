"""Which sessions a turn of the env-server's loop attends to."""

from types import SimpleNamespace
from typing import Any

from zerobeast.common.wire.messages import Header, Kind
from zerobeast.common.wire.session import Session
from zerobeast.services.envserver.sessions import MAX_IN_THE_MAKING, Hosted, sessions_to_advance

HELLO = Header(Kind.HELLO, 1)


def session(at: float, *, inline: bool, made: bool = False) -> Session[Hosted]:
    env: Any = SimpleNamespace(inline=inline)
    return Session(1, 0, Hosted(env, None if made else HELLO), opened_at=at, welcome={} if made else None)


def test_sessions_that_are_made_always_advance_and_before_those_that_are_not() -> None:
    made = [session(at, inline=True, made=True) for at in range(20)]
    assert sessions_to_advance(made) == made
    new = session(-1, inline=True)
    assert sessions_to_advance([new, *made]) == [*made, new]


def test_few_sessions_of_processes_and_one_of_the_thread_are_made_in_order_of_arrival() -> None:
    apart = [session(at, inline=False) for at in range(MAX_IN_THE_MAKING + 5)]
    inline = [session(at, inline=True) for at in range(3)]
    assert sessions_to_advance([*reversed(inline), *reversed(apart)]) == [*apart[:MAX_IN_THE_MAKING], inline[0]]
    assert sessions_to_advance([*inline, *apart], make=False) == apart[:MAX_IN_THE_MAKING], (
        "the thread is needed for steps"
    )


def test_the_loop_does_not_wait_for_messages_while_it_has_environments_to_make() -> None:
    assert session(0, inline=True).state.has_inline_work
    assert not session(0, inline=True, made=True).state.has_inline_work
    assert not session(0, inline=False).state.has_inline_work
