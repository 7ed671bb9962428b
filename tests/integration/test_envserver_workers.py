"""Environments that raise, die, hang or outlive their server, each in a real worker process."""

import contextlib
import select
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.build.envs import COUNTER, ON_PURPOSE
from tests.build.envservers import running
from tests.build.odd import ODD
from tests.helpers import killed_at_last, python, running_still, wait_until
from zerobeast.clients.env_client import EnvClient
from zerobeast.common.errors import ConfigError, EnvError, PeerLost
from zerobeast.common.settings import EnvConfig
from zerobeast.common.transport import Context
from zerobeast.services.envserver import service, workers
from zerobeast.services.envserver.agents import shard
from zerobeast.services.envserver.catalogue import make_env
from zerobeast.services.envserver.shard import FRESH_AFTER
from zerobeast.services.envserver.workers import WorkerVectorEnv


def counter(**kwargs: Any) -> dict[str, Any]:
    return {"id": COUNTER, "kwargs": kwargs}


def step_until(client: EnvClient, *, first: bool) -> None:
    wait_until(lambda: client.step([0])[0]["first"].all() == first)


def children() -> list[psutil.Process]:
    """Worker processes of this test, without multiprocessing's own helper."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended, or is a zombie that has yet to be reaped
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


def test_an_environment_that_fails_for_good_ends_its_session_with_the_reason(context: Context, ipc: str) -> None:
    with running(ipc) as server:
        with EnvClient(context, ipc, counter(raise_at=1), 1, seed=0) as client:
            client.reset()
            with pytest.raises(ConfigError, match=ON_PURPOSE) as caught:
                wait_until(lambda: client.step([0]) is None)
            assert caught.value.exit_code == 1, "no setting is wrong"
            wait_until(lambda: len(server.table) == 0)
        before = server.report()["env_errors"]
        with EnvClient(context, ipc, {"id": "tests.build.odd:Old"}, 2, seed=0) as client:
            with pytest.raises(ConfigError, match="ndarray") as caught:
                client.reset()
            assert caught.value.exit_code == 2, "another try cannot help"
            assert server.report()["env_errors"] == before + 2, "the environment and its session"


def test_after_some_failures_in_a_row_the_next_try_is_in_a_fresh_process(
    context: Context, ipc: str, tmp_path: Path
) -> None:
    once = tmp_path / "once"
    env = {"id": ODD, "kwargs": {"at": -1, "deed": "spoil", "once": str(once)}}
    with running(ipc) as server, EnvClient(context, ipc, env, 1, seed=0) as client:
        client.reset()
        once.touch()
        step_until(client, first=True)
        step_until(client, first=False)
        assert server.report()["env_errors"] == FRESH_AFTER


def test_a_process_whose_environments_cannot_be_made_anew_is_replaced_too(
    context: Context, ipc: str, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    env = {"id": ODD, "kwargs": {"broken": str(broken)}}
    with running(ipc) as server, EnvClient(context, ipc, env, 1, seed=0) as client:
        client.reset()
        broken.touch()
        children()[0].kill()
        client.begin_step([0])
        wait_until(lambda: server.report()["env_errors"] >= 3)
        broken.unlink()
        assert client.finish()[0]["first"].all()


def test_a_process_that_dies_is_replaced_and_the_others_go_on(context: Context, ipc: str) -> None:
    with running(ipc, workers=2) as server, EnvClient(context, ipc, counter(), 2, seed=5) as client:
        client.reset()
        client.step([0, 0])
        victim, survivor = sorted(children(), key=lambda child: child.create_time())
        victim.kill()
        wait_until(lambda: victim not in children())
        rows, *_ = client.step([0, 0])
        assert sorted(rows["first"].tolist()) == [False, True]
        assert sorted(rows["obs"][:, 0].tolist()) == [0, 2]
        (lost,) = client.lost
        assert "SIGKILL" in lost.reason
        assert rows["first"][lost.row]
        assert survivor.is_running()
        assert server.report()["env_errors"] == 1
        rows, *_ = client.step([0, 0])
        assert sorted(rows["obs"][:, 0].tolist()) == [1, 3]
        assert client.lost == ()


def test_an_environment_that_ends_its_process_in_each_first_step_loses_those_episodes_and_its_session(
    context: Context, ipc: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "MAX_DEATHS", 3)
    env = {"id": ODD, "kwargs": {"at": 1, "deed": "exit"}}
    with running(ipc), EnvClient(context, ipc, env, 1, seed=0) as client:
        client.reset()
        for _ in range(2):
            client.step([0])
            assert [tuple(lost) for lost in client.lost] == [("exit code 7", 0)]
        with pytest.raises(ConfigError, match="3 times"):
            client.step([0])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_environments_may_start_processes_which_end_with_their_worker_however_it_ends(
    context: Context, ipc: str, tmp_path: Path, method: str
) -> None:
    family = tmp_path / "family"
    env = {"id": ODD, "kwargs": {"family": str(family), "method": method}}
    with running(ipc), EnvClient(context, ipc, env, 1, seed=0) as client:
        client.reset()
        (worker,), first = children(), int(family.read_text())
        worker.kill()
        assert client.step([0])[0]["first"].all(), "a forked process holds its pipe, and yet its death is noticed"
        second = int(family.read_text().split()[1])
        assert not running_still(first)
        assert running_still(second)
    wait_until(lambda: not running_still(second))


@pytest.mark.parametrize(("together", "longest"), [(False, "0.1"), (True, "0.4")])
def test_the_limit_is_that_of_each_environment_and_the_sentence_names_its_setting(
    monkeypatch: pytest.MonkeyPatch, together: bool, longest: str
) -> None:
    monkeypatch.setattr(workers, "MAX_DEATHS", 1)
    kwargs = {"reset_s": 0.3, "at": 1, "deed": "hang"}
    make = partial(shard, ODD, partial(make_env, ODD, kwargs), config=EnvConfig(id=ODD))
    env = WorkerVectorEnv(ODD, make, 4, 0, workers=1, together=together)

    def finish(limit_s: float) -> None:
        while not env.collect():
            env.tend(time.monotonic(), limit_s)
            select.select(env.files, (), (), 0.05)

    try:
        finish(60.0)
        env.reset()
        finish(1.0)  # all four take 1.2 s
        assert env.timeouts == 0
        env.step(np.zeros(4, np.int64))
        with pytest.raises(EnvError, match=rf"{longest} s with envserver\.step_timeout_s"):
            finish(0.1)
    finally:
        env.close()
        wait_until(lambda: env.closed(force=True))


def test_an_environment_that_hangs_holds_up_no_other_session(context: Context, ipc: str, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    answered = threading.Event()
    with running(ipc), EnvClient(context, ipc, counter(block_file=str(lock)), 1, seed=0) as slow:
        slow.reset()
        lock.touch()
        thread = threading.Thread(target=lambda: (slow.step([4]), answered.set()))
        thread.start()
        for env in ({"id": "CartPole-v1"}, counter()):
            with EnvClient(context, ipc, env, 2, seed=0) as fast:
                fast.reset()
                fast.step([0, 1])
        assert not answered.is_set()
        lock.unlink()
        thread.join(timeout=20)
        assert answered.is_set()


def test_an_environment_that_never_answers_is_killed_when_its_client_goes_and_others_with_the_server(
    context: Context, ipc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CLOSE_LIMIT_S", 0.2)
    lock = tmp_path / "lock"
    with running(ipc, workers=3):
        other = EnvClient(context, ipc, counter(), 2, seed=0)
        client = EnvClient(context, ipc, counter(block_file=str(lock)), 1, seed=0)
        client.reset()
        assert len(children()) == 3
        lock.touch()
        client.timeout_s = 0.2
        with pytest.raises(PeerLost, match=r"for 0\.2 s"):
            client.step([0])
        client.close()
        wait_until(lambda: len(children()) == 2)
    other.close()
    assert not children(), "the server has ended those of its other session"


@pytest.mark.parametrize("stuck", [False, True])
def test_workers_end_with_a_server_that_is_killed(context: Context, ipc: str, tmp_path: Path, stuck: bool) -> None:
    lock, status = tmp_path / "lock", tmp_path / "status.json"
    command = ["-m", "zerobeast.services.envserver", "--envserver.endpoint", ipc, "--status-file", status]
    server = python(*command)
    with killed_at_last(server):
        wait_until(status.exists)
        client = EnvClient(context, ipc, counter(block_file=str(lock)), 1, seed=0)
        client.reset()
        processes = psutil.Process(server.pid).children(recursive=True)
        assert processes
        if stuck:
            lock.touch()
            client.timeout_s = 0.5
            with pytest.raises(PeerLost):
                client.step([0])
        server.kill()
        server.wait()
        assert not psutil.wait_procs(processes, timeout=60)[1]
    client.close()
