"""Finding the processes of a run that another process has started."""

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from zerobeast.cli.watch import main
from zerobeast.common.errors import ConfigError
from zerobeast.launcher.attached import attached, runs


def announce(folder: Path, name: str, pid: Any, **more: str) -> None:
    (folder / "services").mkdir(exist_ok=True)
    (folder / "services" / f"{name}.json").write_text(json.dumps({"health": "127.0.0.1:1", "pid": pid, **more}))


def test_services_of_one_process_are_one_worker_and_the_learner_is_first(tmp_path: Path) -> None:
    for role in ("actor", "broker", "envserver"):
        announce(tmp_path, f"{role}-0", 11)
        announce(tmp_path, f"{role}-1", 12)
    announce(tmp_path, "learner-0", os.getpid())
    found = attached(tmp_path)
    assert [each.spec.name for each in found] == ["learner 0", "worker 0", "worker 1"]
    assert found[0].code is None
    assert found[1].spec.log == tmp_path / "logs" / "worker-0.log"
    assert found[1].spec.statuses["broker"] == tmp_path / "services" / "broker-0.json"


def test_a_process_that_has_not_announced_all_its_services_and_one_elsewhere_are_there_too(tmp_path: Path) -> None:
    announce(tmp_path, "broker-0", 11)
    announce(tmp_path, "envserver-0", 11)
    announce(tmp_path, "actor-3", 11, host="another-machine")
    announce(tmp_path, "actor-4", 11, host=socket.gethostname())
    assert {each.spec.name: each.pid for each in attached(tmp_path)} == {
        "broker 0": 11,
        "envserver 0": 11,
        "actor 3": -1,
        "actor 4": 11,
    }


def test_files_that_are_no_announcements_are_left_out(tmp_path: Path) -> None:
    announce(tmp_path, "cook-0", 1)
    announce(tmp_path, "broker-x", 1)
    announce(tmp_path, "broker-0", "none")
    (tmp_path / "services" / "actor-0.json").write_text("{")
    for number, text in enumerate(("[]", "[" * 100_000, '{"pid": Infinity}', '{"pid": 2147483648}', '{"pid": -7}'), 1):
        (tmp_path / "services" / f"actor-{number}.json").write_text(text)
    assert attached(tmp_path) == []
    assert attached(tmp_path / "nowhere") == []


def test_a_process_that_has_ended_counts_as_such(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    announce(tmp_path, "learner-0", process.pid)
    assert attached(tmp_path)[0].code == 0


def test_a_run_runs_while_its_lock_is_held(tmp_path: Path) -> None:
    assert not runs(tmp_path)
    with (tmp_path / ".lock").open("w") as file:
        assert not runs(tmp_path)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert runs(tmp_path)
        fcntl.flock(file, fcntl.LOCK_UN)
        assert not runs(tmp_path)


def run_in(root: Path) -> Path:
    folder = root / "x"
    folder.mkdir()
    (folder / "config.yaml").write_text("name: x\ntotal_steps: 1000\nenv: {id: CartPole-v1}")
    (folder / "metrics.csv").write_text("agent_steps,mean_return_100\n400,21.5\n")
    return folder


def test_where_nothing_runs_there_is_nothing_to_watch(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^no run in {tmp_path} has been started; --root names another folder$"):
        main(["--root", str(tmp_path)])
    with pytest.raises(ConfigError, match="there is no run 'x'"):
        main(["x", "--root", str(tmp_path)])
    run_in(tmp_path)
    with pytest.raises(ConfigError, match=r"run 'x': nothing runs there now; it has done 400 of 1,000 agent steps"):
        main(["x", "--root", str(tmp_path)])


def test_watching_ends_with_a_sentence_when_the_run_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_in(tmp_path)
    script = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); "
    command = [sys.executable, "-c", f"{script} time.sleep(2)", str(folder / ".lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        began = time.monotonic()
        assert main([str(folder)]) == 0
    assert time.monotonic() - began >= 1
    assert capsys.readouterr().out.startswith(
        "x: stopped after 400 agent steps, mean return of the last 100 episodes 21.5"
    )
