"""Worker processes: environments that raise, die, hang or outlive their server; numbers, wear, and what kills them."""

import contextlib
import multiprocessing
import os
import select
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.build.envs import COUNTER, ON_PURPOSE
from tests.build.odd import HOME, NUMBERED, ODD
from tests.build.planes import run_env_server
from tests.helpers import killed_at_last, python, running_still, wait_until
from zerobeast.clients.env_client import EnvClient
from zerobeast.common.errors import ConfigError, EnvError, PeerLost
from zerobeast.common.process import endings, usage
from zerobeast.common.settings import EnvConfig, RunConfig
from zerobeast.common.transport import Context
from zerobeast.common.wire.episodes import read_lost
from zerobeast.services.envserver import service, workers
from zerobeast.services.envserver.agents import make_shard
from zerobeast.services.envserver.catalogue import make_env
from zerobeast.services.envserver.env_check import check_env
from zerobeast.services.envserver.shard import FRESH_AFTER
from zerobeast.services.envserver.worker import Wear
from zerobeast.services.envserver.workers import WorkerVectorEnv
from zerobeast.testing.sessions import Session, session


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
    with run_env_server(ipc) as server:
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


def test_after_some_failures_the_next_try_is_in_a_fresh_process(context: Context, ipc: str, tmp_path: Path) -> None:
    once = tmp_path / "once"
    env = {"id": ODD, "kwargs": {"at": -1, "deed": "spoil", "once": str(once)}}
    with run_env_server(ipc) as server, EnvClient(context, ipc, env, 1, seed=0) as client:
        client.reset()
        once.touch()
        step_until(client, first=True)
        step_until(client, first=False)
        assert server.report()["env_errors"] == FRESH_AFTER


def test_a_process_that_can_make_no_environment_is_replaced_too(context: Context, ipc: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    env = {"id": ODD, "kwargs": {"broken": str(broken)}}
    with run_env_server(ipc) as server, EnvClient(context, ipc, env, 1, seed=0) as client:
        client.reset()
        broken.touch()
        children()[0].kill()
        client.begin_step([0])
        wait_until(lambda: server.report()["env_errors"] >= 2)
        broken.unlink()
        assert client.finish()[0]["first"].all()


def test_a_process_that_dies_is_replaced_and_the_others_go_on(context: Context, ipc: str) -> None:
    with run_env_server(ipc, workers=2) as server, EnvClient(context, ipc, counter(), 2, seed=5) as client:
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


def test_a_process_that_ends_in_each_step_loses_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "MAX_DEATHS", 3)
    with session(ODD, {"kwargs": {"at": 1, "deed": "exit"}}, envs=1, apart=True) as envs:
        envs.reset()
        for _ in range(2):
            envs.step()
            assert [tuple(lost) for lost in read_lost(envs.episodes)] == [("exit code 7", 0)]
        with pytest.raises(EnvError, match="3 times"):
            envs.step()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_of_environments_end_with_the_worker(
    context: Context, ipc: str, tmp_path: Path, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    family = tmp_path / "family"
    env = {"id": ODD, "kwargs": {"family": str(family), "method": method}}
    with run_env_server(ipc), EnvClient(context, ipc, env, 1, seed=0) as client:
        client.reset()
        (worker,), first = children(), int(family.read_text())
        worker.kill()
        assert client.step([0])[0]["first"].all(), "a forked process holds its pipe, and yet its death is noticed"
        second = int(family.read_text().split()[1])
        assert (running_still(first), running_still(second)) == (False, True)
        assert method == "fork" or "had left" in caplog.text
    wait_until(lambda: not running_still(second))


@pytest.mark.parametrize(("together", "longest"), [(False, "0.1"), (True, "0.4")])
def test_the_limit_is_that_of_each_environment(monkeypatch: pytest.MonkeyPatch, together: bool, longest: str) -> None:
    monkeypatch.setattr(workers, "MAX_DEATHS", 1)
    kwargs = {"reset_s": 0.3, "at": 1, "deed": "hang"}
    make = partial(make_shard, ODD, partial(make_env, ODD, kwargs), config=EnvConfig(id=ODD))
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
        wait_until(lambda: env.release(force=True))


def test_an_environment_that_hangs_holds_up_no_other_session(context: Context, ipc: str, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with run_env_server(ipc, workers=1), EnvClient(context, ipc, counter(block_file=str(lock)), 1, seed=0) as slow:
        slow.reset()
        lock.touch()
        slow.begin_step([4])
        for env in ({"id": "CartPole-v1"}, counter()):
            with EnvClient(context, ipc, env, 2, seed=0) as fast:
                fast.reset()
                fast.step([0, 1])
        lock.unlink()
        assert slow.finish()[0]["reward"] == 4


def test_an_environment_that_never_answers_is_killed_when_its_client_goes_and_others_with_the_server(
    context: Context, ipc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CLOSE_LIMIT_S", 0.2)
    lock = tmp_path / "lock"
    with run_env_server(ipc):
        other = EnvClient(context, ipc, counter(), 1, seed=0)
        client = EnvClient(context, ipc, counter(block_file=str(lock)), 1, seed=0)
        client.reset()
        assert len(children()) == 2
        lock.touch()
        client.timeout_s = 0.2
        with pytest.raises(PeerLost, match=r"for 0\.2 s"):
            client.step([0])
        client.close()
        wait_until(lambda: len(children()) == 1)
    other.close()
    assert not children(), "the server has ended those of its other session"


def test_workers_end_with_a_server_that_is_killed_even_stuck_ones(context: Context, ipc: str, tmp_path: Path) -> None:
    lock, status = tmp_path / "lock", tmp_path / "status.json"
    command = ["-m", "zerobeast.services.envserver", "--envserver.endpoint", ipc, "--status-file", status]
    server = python(*command)
    with killed_at_last(server):
        wait_until(status.exists)
        idle, stuck = (EnvClient(context, ipc, env, 1, seed=0) for env in (counter(), counter(block_file=str(lock))))
        for client in (idle, stuck):
            client.reset()
        processes = psutil.Process(server.pid).children(recursive=True)
        assert len(processes) >= 2
        lock.touch()
        stuck.timeout_s = 0.5
        with pytest.raises(PeerLost):
            stuck.step([0])
        server.kill()
        server.wait()
        assert not psutil.wait_procs(processes, timeout=60)[1]
    idle.close()
    stuck.close()


def numbered(folder: Path) -> dict[str, Any]:
    given = {"number": "{number}", "port": "1900{number}", "deep": [{"at": "{x}{number}", "n": '0"{number}'}]}
    return {"id": NUMBERED, "kwargs": {"folder": str(folder), **given}}


def alive(folder: Path) -> dict[str, str]:
    """Which numbers are in use, and by which process."""
    found = {file.name: file.read_text() for file in folder.glob("[0-9]*")}
    return {number: pid for number, pid in found.items() if psutil.pid_exists(int(pid))}


def test_every_environment_of_any_server_has_a_number_of_its_own(context: Context, ipc: str, tmp_path: Path) -> None:
    env = numbered(tmp_path)
    with run_env_server(ipc, workers=2), EnvClient(context, ipc, env, 3, seed=0) as client:
        client.reset()
        with run_env_server(f"{ipc}.2", in_process=True), EnvClient(context, f"{ipc}.2", env, 2, seed=0) as other:
            other.reset()
            assert len(alive(tmp_path)) == 5
            assert check_env(RunConfig(env=EnvConfig.model_validate(env)), env["id"])[1] == 1, "it makes a sixth"
        before = alive(tmp_path)
        assert len(before) == 3
        victim = max(before.values(), key=list(before.values()).count)
        os.kill(int(victim), signal.SIGKILL)
        client.step([0, 0, 0])
        client.step([0, 0, 0])
        after = alive(tmp_path)
        assert len(after) == 3
        assert victim not in after.values()


def test_environments_of_a_mix_have_a_number_each_and_those_without_it_may_step_as_a_vector(tmp_path: Path) -> None:
    ids = f"uniform({NUMBERED},{HOME}:Twin)"
    for _ in range(2):
        with session(ids, {"kwargs": numbered(tmp_path)["kwargs"]}, envs=2):
            assert len(alive(tmp_path)) == 4
        assert not alive(tmp_path)
    with pytest.raises(EnvError, match=r"TypeError: .*'port'"):  # as a single one, with that argument
        Session("CartPole-v1", {"kwargs": {"port": "{number}"}}, envs=1)


def test_first_processes_wear_at_different_times() -> None:
    limits = [Wear(100).sooner(seed) for seed in range(8)]
    assert len({limit.share for limit in limits}) == 8
    assert all(not limit.after(74) and limit.after(26) for limit in limits)
    own = usage.memory_bytes()
    assert not Wear(memory_bytes=own * 9 // 10).after(0), "an episode is not cut off if its end may come soon enough"
    assert Wear(memory_bytes=own * 9 // 10).after(1)
    assert Wear(memory_bytes=own * 6 // 10).after(0)
    for seed in range(8):
        Wear(memory_bytes=own * 11 // 10).sooner(seed).begin()


def test_a_worn_process_is_replaced_between_two_episodes(context: Context, ipc: str, tmp_path: Path) -> None:
    with (
        run_env_server(ipc, workers=1, max_episodes_per_process=4) as server,
        EnvClient(context, ipc, numbered(tmp_path), 2, seed=0) as client,
    ):
        client.reset()
        pids = []
        for step in range(12):  # of 3 rows each, which is 4 episodes of both
            rows = client.step([0, 0])[0]
            assert rows["first"].tolist() == [step % 3 == 2] * 2
            pids.append(rows["reward"].tolist())
        assert server.report()["env_recycled"] == 2
        assert server.report()["env_errors"] == 0
        assert server.report()["episodes"] == 8
        assert len({pid for pair in pids for pid in pair if pid}) == 2
        assert len(alive(tmp_path)) == 2, "those of the third process"


def test_memory_is_that_of_what_a_process_has_started_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MEMORY_PERIOD_S", 1e-9)
    before = usage.memory_bytes()
    child = python("-Sc", "x = b'1' * (100 << 20); print(flush=True); input()", stdin=subprocess.PIPE)
    with killed_at_last(child):
        assert child.stdout is not None
        child.stdout.readline()
        assert usage.memory_bytes() > before + (90 << 20)


def test_a_bound_on_memory_below_that_of_a_fresh_process_is_refused(context: Context, ipc: str, tmp_path: Path) -> None:
    with (
        run_env_server(ipc, max_process_memory_mb=20),
        EnvClient(context, ipc, numbered(tmp_path), 1, seed=0) as client,
        pytest.raises(ConfigError, match=r"envserver\.max_process_memory_mb"),
    ):
        client.reset()


def test_a_process_that_is_killed_is_reported_as_killed(
    context: Context, ipc: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, machine = tmp_path / "memory.oom_control", tmp_path / "vmstat"
    group.write_text("oom_kill_disable 0\noom_kill 4\n")
    machine.write_text("oom_kill 4\n")
    monkeypatch.setattr(endings, "COUNTERS", {group: "here", machine: "elsewhere"})
    with run_env_server(ipc), EnvClient(context, ipc, numbered(tmp_path), 1, seed=0) as client:
        client.reset()
        machine.write_text("oom_kill 5\n")
        os.kill(int(alive(tmp_path).popitem()[1]), signal.SIGKILL)
        client.step([0])
        assert "`kill -9`" in caplog.text
        group.write_text("oom_kill 6\n")
        os.kill(int(alive(tmp_path).popitem()[1]), signal.SIGKILL)
        client.step([0])
        assert "OOM killer has ended 2" in caplog.text
    group.unlink()
    assert endings.oom_kills() == {"elsewhere": 5}


def games() -> set[psutil.Process]:
    """ViZDoom's processes of this test, which writes its settings into a folder of its own."""
    here = os.getcwd()
    return {
        each
        for each in psutil.process_iter(["name", "cwd"])
        if (each.info["name"], each.info["cwd"]) == ("vizdoom", here)
    }


def test_vizdoom_ends_with_its_worker_and_goes_on_in_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workers, "start_folder", lambda: tmp_path)  # worker processes begin there
    with session("envpool/Basic-v1", {}, envs=1, apart=True) as envs:
        assert (envs.env.takes_options, envs.env.independent) == (False, False)
        still = np.zeros((1, *envs.env.spec.action.shape), np.float32)
        assert envs.reset()["first"].all()
        assert not envs.step(still)["first"].any()
        assert envs.env.infos.infos["HEALTH"] == 100
        [game] = games()
        os.kill(game.ppid(), signal.SIGKILL)
        assert envs.step(still)["first"].all()
        assert game not in games()
        assert (len(games()), envs.env.errors) == (1, 1)
    assert not games()


def test_every_further_seed_has_a_process_of_its_own_so_that_no_simulator_stays_in_memory() -> None:
    found = []
    with session("envpool/CartPole-v1", {}, envs=2, apart=True) as envs:
        for seed in (5, None, 5):
            obs = envs.reset(seed)["obs"].tolist()
            (worker,) = multiprocessing.active_children()
            found.append((worker.pid, obs))
        assert (envs.env.errors, envs.env.timeouts) == (0, 0)
    (first, seeded), (second, other), (third, again) = found
    assert first == second != third
    assert seeded == again != other
