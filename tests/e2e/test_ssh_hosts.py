"""`beast train --hosts` with a real ssh: two hosts that are this machine, one of which is lost for a while."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.helpers import free_port, wait_until
from zerobeast.common.files import evaluations, metrics

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin")

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0 or not SSHD or not shutil.which("ssh"), reason="needs root, ssh and sshd"),
]

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
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment variables with which `ssh one` and `ssh two` lead to this machine."""
    assert SSHD is not None
    places = {"folder": tmp_path, "port": free_port(1), "here": Path.cwd()}
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    (tmp_path / "sshd_config").write_text(SERVER.format(**places))
    (tmp_path / "ssh_config").write_text(CLIENT.format(**places))
    Path("/run/sshd").mkdir(exist_ok=True)
    (tmp_path / "home").mkdir()
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/ssh_config "$@"\n')
    wrapper.chmod(0o755)
    with ExitStack() as stack:
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(tmp_path / "sshd_config")])
        stack.callback(server.wait)
        stack.callback(server.terminate)
        yield {**os.environ, "PATH": f"{wrapper.parent}:{os.environ['PATH']}"}


def workers(folder: Path) -> list[psutil.Process]:
    """The worker processes of the hosts."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if "zerobeast.services.worker" in line and "until" not in line:
            try:
                if process.cwd().startswith(str(folder)):
                    found.append(process)
            except psutil.Error:
                continue
    return found


@pytest.mark.timeout(300)
def test_a_run_uses_hosts_loses_one_and_leaves_nothing_behind(environ: dict[str, str], tmp_path: Path) -> None:
    steps, folder = 60_000, tmp_path / "runs" / "x"
    (tmp_path / "hosts").write_text(f"one 1 {sys.executable}  # by its name\n\ntwo 1\n")
    flags = ["--hosts", str(tmp_path / "hosts"), "--local.placement", "serve", "--plain"]
    flags += ["--learner.endpoint", f"tcp://127.0.0.1:{free_port(3)}", "--broker.endpoint", f"ipc://{tmp_path}/b"]
    flags += ["--root", str(folder.parent), "--name", "x", "--env", "CartPole-v1", "--preset", "classic"]
    flags += ["--evaluate.times", "2"]
    command = [sys.executable, "-m", "zerobeast", "train", *flags, "--total_steps", str(steps)]
    train = subprocess.Popen(command, env=environ)
    try:
        wait_until(lambda: len(workers(tmp_path / "home")) == 2, 60)
        wait_until(lambda: metrics.last(folder).get("agent_steps", 0) > 0, 60)
        secrets = (tmp_path / "home" / ".zerobeast").glob("x-*/keys/secret/*")
        assert sorted(file.name for file in secrets) == ["actor.key_secret"] * 2 + ["broker.key_secret"] * 2
        below = psutil.Process(train.pid).children(recursive=True)
        next(each for each in below if each.name() == "ssh" and "one" in each.cmdline()).kill()
        assert train.wait(240) == 0
    finally:
        train.kill()
    assert metrics.last(folder)["agent_steps"] == steps
    assert len(evaluations.read(folder)) == 2, "by the evaluator here"
    wait_until(lambda: not workers(tmp_path / "home"), 30)
    wait_until(lambda: not list((tmp_path / "home" / ".zerobeast").iterdir()), 30)
