"""Whether another session can be opened, given the sessions that are hosted or ending."""

from types import SimpleNamespace
from typing import Any

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.settings.run import EnvServerConfig
from zerobeast.services.envserver.sessions import MAX_SESSIONS, check_capacity

SETTINGS = EnvServerConfig(max_envs=100, max_workers=10)


def env(num_envs: int = 1, processes: int = 0) -> Any:
    return SimpleNamespace(num_envs=2 * num_envs, agents=2, processes=processes)


def room(num_envs: int, hosted: list[Any], *, leaving: list[Any] | None = None) -> bool:
    try:
        check_capacity(num_envs, SETTINGS, hosted=hosted, leaving=leaving or [])
    except RemoteProtocolError as error:
        return error.reason != "busy"
    return True


def test_environments_count_in_all_sessions() -> None:
    assert room(100, [])
    assert room(40, [env(30), env(30)])
    assert not room(41, [env(30), env(30)])


def test_sessions_count() -> None:
    small = [env(0)] * (MAX_SESSIONS - 1)
    assert room(1, small)
    assert not room(1, [*small, env(0)])


def test_processes_count_until_they_have_ended() -> None:
    assert room(1, [env(4, 4), env(5, 5)])
    assert not room(1, [env(5, 5), env(5, 5)])
    assert not room(1, [env(5, 5)], leaving=[env(5, 5)])
