"""The file of hosts, and what it may say."""

import shutil
import sys
from pathlib import Path

import pytest

from zerobeast.cli.train import train
from zerobeast.common.errors import ConfigError
from zerobeast.launcher.hosts import Host, read_hosts, unreachable


def test_a_line_is_a_host_its_workers_and_perhaps_a_python(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# ours\nme@one 16 /opt/python # fast\n\n  two 1\n")
    assert read_hosts(file) == [Host("me@one", 16, "/opt/python"), Host("two", 1, sys.executable)]


@pytest.mark.parametrize("line", ["one", "one two", "one 0", "one 4 python more", "-oProxyCommand=x 4"])
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(f"good 1\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        read_hosts(file)
    assert str(caught.value) == f"{file}, line 2: got {line!r}, expected: host workers [python]"


def test_a_file_without_hosts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# none\n")
    with pytest.raises(ConfigError, match="it names no host"):
        read_hosts(tmp_path / "hosts")
    with pytest.raises(ConfigError, match="No such file"):
        read_hosts(tmp_path / "nowhere")


def test_why_a_host_cannot_be_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("ssh"):
        assert unreachable("nowhere.invalid").startswith("ssh nowhere.invalid: ")
    monkeypatch.setenv("PATH", "")
    assert unreachable("localhost") == "ssh cannot be started: No such file or directory"


def test_hosts_need_a_learner_that_they_can_reach(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("one 1\n")
    flags = ["--hosts", str(tmp_path / "hosts"), "--env", "CartPole-v1", "--root", str(tmp_path / "runs")]
    with pytest.raises(ConfigError, match="expected --local"):
        train([*flags, "--local.placement", "fused"], {})
    assert not (tmp_path / "runs").exists()
