"""Finding the processes of a run that another process has started."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.build.errors import refused
from tests.build.folders import saved
from zerobeast.cli.watch import main
from zerobeast.common.health import pages, status
from zerobeast.common.health.status import ExitRecord
from zerobeast.discovery.run import services_of
from zerobeast.launcher.attached import attached, runs

HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(2)
"""


def announce(folder: Path, name: str, pid: Any, **more: str) -> None:
    (folder / "services").mkdir(exist_ok=True)
    (folder / "services" / f"{name}.json").write_text(json.dumps({"health": "127.0.0.1:1", "pid": pid, **more}))


def test_services_of_one_process_are_one_worker_and_the_learner_is_first(tmp_path: Path) -> None:
    for role in ("actor", "broker", "envserver"):
        announce(tmp_path, f"{role}-0", 11)
        announce(tmp_path, f"{role}-1", 12)
    announce(tmp_path, "learner-0", os.getpid())
    learner, worker, _ = found = attached(tmp_path)
    assert [each.spec.name for each in found] == ["learner 0", "worker 0", "worker 1"]
    assert worker.spec.log == tmp_path / "logs" / "worker-0.log"
    assert worker.spec.statuses["broker"] == tmp_path / "services" / "broker-0.json"
    assert learner.code is None
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    announce(tmp_path, "learner-0", ended.pid)
    assert attached(tmp_path)[0].code == 0


def test_a_process_that_has_not_announced_all_its_services_and_one_elsewhere_are_there_too(tmp_path: Path) -> None:
    for role in ("broker", "envserver"):
        announce(tmp_path, f"{role}-0", 11)
    announce(tmp_path, "actor-3", 11, host="another-machine")
    announce(tmp_path, "actor-4", 11, host=socket.gethostname())
    found = {each.spec.name: each.pid for each in attached(tmp_path)}
    assert found == {"broker 0": 11, "envserver 0": 11, "actor 3": -1, "actor 4": 11}


def test_a_status_file_is_of_the_process_that_wrote_it_until_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, end = status.files_of("learner", tmp_path / "services" / "learner-0.json"), ExitRecord("failed", "no", 2)
    page = {"role": "learner", "pid": 12}
    monkeypatch.setattr(pages, "fetch_page", lambda *_: page)
    for pid, found in ((12, page), (11, {})):
        announce(tmp_path, "learner-0", pid)
        assert [view.page for view in services_of(tmp_path, remote=False)] == [found]
    status.record_end(files, 13, end)
    assert status.end_of(files, 13) is None, "11 has not ended"
    for pid in (11, 13):
        status.record_end(files, pid, end)
        assert status.end_of(files, pid) == end


def test_files_that_are_no_announcements_are_left_out(tmp_path: Path) -> None:
    announce(tmp_path, "cook-0", 1)
    announce(tmp_path, "broker-x", 1)
    announce(tmp_path, "broker-0", "none")
    for number, text in enumerate(
        ("{", "[]", "[" * 100_000, '{"pid": Infinity}', '{"pid": 2147483648}', '{"pid": -7}')
    ):
        (tmp_path / "services" / f"actor-{number}.json").write_text(text)
    assert attached(tmp_path) == attached(tmp_path / "nowhere") == []


def test_where_nothing_runs_there_is_nothing_to_watch(tmp_path: Path) -> None:
    saved(tmp_path / "ended", "x", {400: 21.5}, total_steps=1000)
    for words in ([], ["x"], ["x", "--root", str(tmp_path / "ended")]):
        with refused():
            main(["--root", str(tmp_path), *words])


def test_a_run_runs_while_its_lock_is_held_and_watching_ends_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path, "x", {400: 21.5}, total_steps=1000)
    (folder / ".lock").touch()
    assert not runs(folder)
    command = [sys.executable, "-c", HOLDER, str(folder / ".lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        assert runs(folder)
        assert main([str(folder)]) == 0
    assert not runs(folder)
    assert capsys.readouterr().out.startswith("x: stopped after 400 agent steps")
