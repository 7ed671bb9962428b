"""How a worker process lives: the numbers of its environments, its replacement, its memory, and what killed it."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.build.envservers import running
from tests.build.odd import HOME, NUMBERED
from tests.helpers import killed_at_last, python
from zerobeast.clients.env_client import EnvClient
from zerobeast.common.errors import ConfigError, EnvError
from zerobeast.common.process import endings, usage
from zerobeast.common.settings import EnvConfig, RunConfig
from zerobeast.common.transport import Context
from zerobeast.services.envserver.check import look
from zerobeast.services.envserver.worker import Wear
from zerobeast.testing.sessions import Session, session


def numbered(folder: Path) -> dict[str, Any]:
    given = {"number": "{number}", "port": "1900{number}", "deep": [{"at": "{x}{number}", "n": '0"{number}'}]}
    return {"id": NUMBERED, "kwargs": {"folder": str(folder), **given}}


def alive(folder: Path) -> dict[str, str]:
    """Which numbers are in use, and by which process."""
    found = {file.name: file.read_text() for file in folder.glob("[0-9]*")}
    return {number: pid for number, pid in found.items() if psutil.pid_exists(int(pid))}


def test_every_environment_has_a_number_that_no_other_has_whichever_server_it_is_of(
    context: Context, ipc: str, tmp_path: Path
) -> None:
    env = numbered(tmp_path)
    with running(ipc, workers=2), EnvClient(context, ipc, env, 3, seed=0) as client:
        client.reset()
        with running(f"{ipc}.2", in_process=True), EnvClient(context, f"{ipc}.2", env, 2, seed=0) as other:
            other.reset()
            assert len(alive(tmp_path)) == 5
            assert look(RunConfig(env=EnvConfig(**env)), env["id"])[1] == 1, "it makes a sixth"
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
    assert [Wear(1).sooner(seed).after(1) for seed in range(8)] == ["1 episode"] * 8
    assert not Wear(5).after(4)
    assert not Wear().after(10**6)
    own = usage.memory_bytes()
    assert not Wear(memory_bytes=own * 9 // 10).after(0), "an episode is not cut off if its end may come soon enough"
    assert Wear(memory_bytes=own * 9 // 10).after(1)
    assert Wear(memory_bytes=own * 6 // 10).after(0)
    for seed in range(8):
        Wear(memory_bytes=own * 11 // 10).sooner(seed).begin()


def test_a_worn_process_is_replaced_between_two_episodes_and_nothing_is_cut_off(
    context: Context, ipc: str, tmp_path: Path
) -> None:
    with (
        running(ipc, workers=2, max_episodes_per_process=2) as server,
        EnvClient(context, ipc, numbered(tmp_path), 2, seed=0) as client,
    ):
        client.reset()
        pids = []
        for step in range(12):  # of 3 rows each, which is 4 episodes
            rows = client.step([0, 0])[0]
            assert rows["first"].tolist() == [step % 3 == 2] * 2
            pids.append(rows["reward"].tolist())
        assert server.report()["env_recycled"] == 4
        assert server.report()["env_errors"] == 0
        assert server.report()["episodes"] == 8
        assert len({pid for pair in pids for pid in pair if pid}) == 4
        assert len(alive(tmp_path)) == 2, "those of the third processes"


def test_memory_is_that_of_what_a_process_has_started_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MEMORY_PERIOD_S", 1e-9)
    before = usage.memory_bytes()
    child = python("-Sc", "x = b'1' * (100 << 20); print(flush=True); input()", stdin=subprocess.PIPE)
    with killed_at_last(child):
        assert child.stdout is not None
        child.stdout.readline()
        assert usage.memory_bytes() > before + (90 << 20)


def test_a_bound_on_memory_that_a_fresh_process_has_already_is_refused(
    context: Context, ipc: str, tmp_path: Path
) -> None:
    with (
        running(ipc, max_process_memory_mb=20),
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
    with running(ipc), EnvClient(context, ipc, numbered(tmp_path), 1, seed=0) as client:
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
