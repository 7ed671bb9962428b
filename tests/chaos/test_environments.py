"""Environments that really raise, hang, crash and leave processes behind, beside one that behaves."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from tests.build.envservers import running
from tests.build.odd import ODD
from tests.chaos.conftest import Note
from tests.chaos.runs import TO_SEE_S
from tests.helpers import python, running_still, wait_until
from zerobeast.clients.env_client import EnvClient
from zerobeast.common.errors import ConfigError
from zerobeast.common.transport import Context
from zerobeast.services.envserver import workers
from zerobeast.services.envserver.service import EnvServer

PATIENCE_S = 6.0  #: the server's step timeout: more than a process takes to start on a busy machine


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/s"


@pytest.fixture
def once(tmp_path: Path) -> Path:
    """A file; while it exists, the next step that can misbehave does."""
    return tmp_path / "once"


@pytest.fixture
def server(endpoint: str) -> Iterator[EnvServer]:
    with running(endpoint, workers=2, step_timeout_s=PATIENCE_S) as server:
        yield server


def odd(**kwargs: Any) -> dict[str, Any]:
    return {"id": ODD, "kwargs": kwargs}


def firsts(client: EnvClient) -> list[bool]:
    found: list[bool] = client.step([0] * client.num_envs)[0]["first"].tolist()
    return found


@pytest.mark.parametrize("deed", ["raise", "exit", "quit", "crash", "close", "hang", "stop", "ignore"])
def test_a_misbehaving_environment_costs_its_own_process_an_episode_and_no_other(
    context: Context,
    endpoint: str,
    server: EnvServer,
    once: Path,
    deed: str,
    note: Note,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    hangs = deed in ("hang", "stop", "ignore")
    with ExitStack() as clients:
        client = clients.enter_context(EnvClient(context, endpoint, odd(at=2, deed=deed, once=str(once)), 2, seed=0))
        other = clients.enter_context(EnvClient(context, endpoint, {"id": "CartPole-v1"}, 2, seed=0))
        client.reset()
        other.reset()
        assert firsts(client) == [False, False]
        once.touch()
        since = time.monotonic()
        answers: list[list[bool]] = []
        thread = Thread(target=lambda: answers.append(firsts(client)))
        thread.start()
        for _ in range(100):
            other.step([0, 1])  # another session does not wait
        assert thread.is_alive() or not hangs
        thread.join(TO_SEE_S)
        note(f"an environment hangs, for {PATIENCE_S:g} s at most" if hangs else "an environment raises or dies", since)
        assert sorted(answers[0]) == [False, True], "one of the two begins an episode, the other goes on with its own"
        assert [firsts(client) for _ in range(5)] == [[False, False]] * 5
        page = server.report()
        assert page["env_errors"] == 1
        assert page["env_timeouts"] == int(hangs)
    if deed in ("raise", "crash", "hang", "ignore"):
        told = caplog.text + capfd.readouterr().err
        assert "odd.py" in told, "the log says where"
        assert ("ZeroDivisionError" in told) == (deed == "raise")


def test_an_environment_that_always_hangs_ends_its_session_with_the_reason(
    context: Context, endpoint: str, server: EnvServer, monkeypatch: pytest.MonkeyPatch, note: Note
) -> None:
    monkeypatch.setattr(workers, "MAX_DEATHS", 1)
    with EnvClient(context, endpoint, odd(at=1, deed="hang"), 1, seed=0) as client:
        client.reset()
        with pytest.raises(ConfigError, match=r"lost its process 1 times .*, the last time: no answer for 6 s"):
            client.step([0])
        wait_until(lambda: len(server.table) == 0)
    note("an environment hangs for ever: its session ends with the reason")


def test_an_environment_that_cannot_be_made_anew_for_a_while_is_tried_again(
    context: Context, endpoint: str, server: EnvServer, tmp_path: Path, note: Note
) -> None:
    broken = tmp_path / "broken"
    with EnvClient(context, endpoint, odd(at=2, deed="raise", broken=str(broken)), 1, seed=0) as client:
        client.reset()
        firsts(client)
        broken.touch()
        answers: list[list[bool]] = []
        thread = Thread(target=wait_until, args=(lambda: answers.append(firsts(client)) or answers[-1] == [False],))
        thread.start()
        wait_until(lambda: broken.stat().st_size >= 3, TO_SEE_S)
        broken.unlink()
        since = time.monotonic()
        thread.join(TO_SEE_S)
        note("an environment cannot be made for a while", since)
        assert answers[-1] == [False]
        assert server.report()["env_errors"] >= 4


def family(path: Path, members: int) -> list[int]:
    """The processes that environments have started, once there are at least `members`."""
    return wait_until(
        lambda: len(found := [int(pid) for pid in path.read_text().split()]) >= members and found, TO_SEE_S
    )


def gone(pids: list[int]) -> bool:
    return wait_until(lambda: not any(map(running_still, pids)), TO_SEE_S)


@pytest.mark.parametrize("end", ["worker killed", "worker hangs", "session ends", "server killed"])
def test_processes_that_an_environment_has_started_end_with_it_however_it_ends(
    context: Context, endpoint: str, tmp_path: Path, once: Path, end: str, note: Note
) -> None:
    started, status = tmp_path / "family", tmp_path / "status.json"
    flags = ["--envserver.endpoint", endpoint, "--status-file", str(status)]
    flags += ["--envserver.step_timeout_s", str(PATIENCE_S)]
    server = python("-m", "zerobeast.services.envserver", *flags, stdout=None, stderr=None)
    try:
        wait_until(status.exists, TO_SEE_S)
        env = odd(at=1, deed="hang", once=str(once), family=str(started))
        with EnvClient(context, endpoint, env, 1, seed=0) as client:
            client.reset()
            children = family(started, 2)
            if end == "worker killed":
                os.kill(psutil.Process(children[0]).ppid(), signal.SIGKILL)
                assert firsts(client) == [True]
            elif end == "worker hangs":
                once.touch()
                assert firsts(client) == [True]
            elif end == "server killed":
                server.send_signal(signal.SIGKILL)
            if end != "session ends":
                assert gone(children)
            if end in ("worker killed", "worker hangs"):
                assert all(map(running_still, family(started, 4)[2:])), "those of its successor stay"
        assert gone(family(started, 2))
        note("an environment leaves processes behind")
    finally:
        server.terminate()
        server.wait(TO_SEE_S)
