"""`beast train --hosts` with a real ssh: two hosts that are this machine, one of which is lost for a while."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.helpers import ROOT, free_port, killed_at_last, python, wait_until
from zerobeast.common.files import metrics

SSH, SSHD = shutil.which("ssh"), shutil.which("sshd", path="/usr/sbin:/usr/bin")

pytestmark = pytest.mark.skipif(os.getuid() != 0 or not SSH or not SSHD, reason="needs root, ssh and sshd")

SERVER = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile {folder}/sshd.pid
StrictModes no
UsePAM no
PermitRootLogin yes
SetEnv HOME={folder}/home PYTHONPATH={here}
"""
CLIENT = """
Host one two
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/key
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
"""


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    """The variable PATH with which `ssh one` and `ssh two` lead to this machine."""
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    port = free_port(1)
    for name, text in {"sshd_config": SERVER, "ssh_config": CLIENT}.items():
        (tmp_path / name).write_text(text.format(folder=tmp_path, port=port, here=ROOT))
    Path("/run/sshd").mkdir(exist_ok=True)
    (tmp_path / "home").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {SSH} -F {tmp_path}/ssh_config "$@"\n')
    (tmp_path / "bin" / "ssh").chmod(0o755)
    with killed_at_last(subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(tmp_path / "sshd_config")])):
        yield f"{tmp_path}/bin:{os.environ['PATH']}"


def workers(home: Path) -> list[psutil.Process]:
    """The worker processes of the hosts."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        if "zerobeast.services.worker" in words and str(process.info["cwd"]).startswith(str(home)):
            found.append(process)
    return found


@pytest.mark.timeout(300)
def test_a_run_uses_hosts_loses_one_and_leaves_nothing_behind(path: str, tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "runs" / "x"
    (tmp_path / "hosts").write_text(f"one 1 {sys.executable}  # by its name\n\ntwo 1\n")
    flags = ["--hosts", str(tmp_path / "hosts"), "--local.placement", "serve", "--plain", "--evaluate.times", "0"]
    flags += ["--learner.endpoint", f"tcp://127.0.0.1:{free_port(3)}", "--broker.endpoint", f"ipc://{tmp_path}/b"]
    flags += ["--root", str(folder.parent), "--name", "x", "--env", "CartPole-v1", "--preset", "classic"]
    command = ("-m", "zerobeast", "train", *flags, "--total_steps", "60000")
    train = python(*command, variables={"PATH": path}, stdout=subprocess.DEVNULL, stderr=None)
    with killed_at_last(train):
        wait_until(lambda: len(workers(home)) == 2, 60)
        wait_until(lambda: metrics.read_last_row(folder).get("agent_steps", 0) > 0, 60)
        secrets = (home / ".zerobeast").glob("x-*/keys/secret/*")
        assert sorted(file.name for file in secrets) == ["actor.key_secret"] * 2 + ["broker.key_secret"] * 2
        below = psutil.Process(train.pid).children(recursive=True)
        next(each for each in below if each.name() == "ssh" and "one" in each.cmdline()).kill()
        assert train.wait(240) == 0
    assert metrics.read_last_row(folder)["agent_steps"] == 60_000
    wait_until(lambda: not workers(home) and not list((home / ".zerobeast").iterdir()), 30)
