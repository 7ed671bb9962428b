"""`beast train --hosts`: two hosts are this machine, by an ssh that starts a local shell; one is lost for a while."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.helpers import free_port, killed_at_last, python, wait_until
from zerobeast.common.files import metrics

#: stays the parent of the shell that it starts, so that a connection can be killed
SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
shift
setsid -w sh -c "$*"
"""


def workers(home: Path) -> list[psutil.Process]:
    """The worker processes of the hosts."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        if "zerobeast.services.worker" in words and str(process.info["cwd"]).startswith(str(home)):
            found.append(process)
    return found


@pytest.mark.timeout(300)
def test_a_run_uses_hosts_loses_one_and_leaves_nothing_behind(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "runs" / "x"
    for place in (home, tmp_path / "bin"):
        place.mkdir()
    (tmp_path / "bin" / "ssh").write_text(SSH)
    (tmp_path / "bin" / "ssh").chmod(0o755)
    (tmp_path / "hosts").write_text(f"one 1 {sys.executable}  # by its name\n\ntwo 1\n")
    flags = ["--hosts", str(tmp_path / "hosts"), "--local.placement", "serve", "--plain", "--evaluate.times", "0"]
    flags += ["--learner.endpoint", f"tcp://127.0.0.1:{free_port(3)}", "--broker.endpoint", f"ipc://{tmp_path}/b"]
    flags += ["--root", str(folder.parent), "--name", "x", "--env", "CartPole-v1", "--preset", "classic"]
    environ = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(home)}
    command = ("-m", "zerobeast", "train", *flags, "--total_steps", "20000")
    train = python(*command, variables=environ, stdout=subprocess.DEVNULL, stderr=None)
    with killed_at_last(train):
        wait_until(lambda: len(workers(home)) == 2, 60)
        wait_until(lambda: metrics.last(folder).get("agent_steps", 0) > 0, 60)
        secrets = (home / ".zerobeast").glob("x-*/keys/secret/*")
        assert sorted(file.name for file in secrets) == ["actor.key_secret"] * 2 + ["broker.key_secret"] * 2
        below = psutil.Process(train.pid).children(recursive=True)
        next(each for each in below if each.name() == "ssh" and "one" in each.cmdline()).kill()
        assert train.wait(240) == 0
    assert metrics.last(folder)["agent_steps"] == 20_000
    wait_until(lambda: not workers(home) and not list((home / ".zerobeast").iterdir()), 30)
