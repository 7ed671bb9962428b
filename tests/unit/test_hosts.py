"""The file of hosts, and the workers on them."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.build.commands import program
from tests.helpers import killed_at_last, python, wait_until
from zerobeast.cli.train import run_train
from zerobeast.common.config.load import load_config
from zerobeast.common.errors import ConfigError
from zerobeast.launcher import hosts
from zerobeast.launcher.hosts import Host, read_hosts, worker_flags


def test_a_line_is_a_host_its_workers_and_perhaps_a_python(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# ours\nme@one 16 /opt/python # fast\n\n  two 1\n")
    assert read_hosts(file) == [Host("me@one", 16, "/opt/python"), Host("two", 1, sys.executable)]
    for line in ("one", "one two", "one 0", f"one {'9' * 5000}", "one 4 python more", "-oProxyCommand=x 4"):
        file.write_text(f"good 1\n{line}\n")
        with pytest.raises(ConfigError, match=f"2: got '{line}'"):
            read_hosts(file)
    for content in (b"# none\n", b"\xff"):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=str(file)):
            read_hosts(file)


def test_hosts_need_a_learner_and_a_reason_is_told_if_not_reached(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "hosts").write_text("one 1\n")
    flags = ["--hosts", str(home / "hosts"), "--env", "CartPole-v1", "--root", str(home / "runs")]
    with pytest.raises(ConfigError, match=r"--local\.placement"):
        run_train([*flags, "--local.placement", "fused"], {})
    assert not (home / "runs").exists()
    program(home / "python", "echo No module named zerobeast >&2; exit 1")
    assert hosts.probe_host("one", "~/python") == "ssh one: No module named zerobeast"
    monkeypatch.setenv("PATH", "")
    assert "No such file" in hosts.probe_host("localhost", sys.executable)


def test_files_of_this_folder_that_settings_refer_to_go_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for part in ("config.yaml", "mine/own.py", "a.py", "b.py", *(f"keys/{part}" for part in hosts.FOR_WORKERS)):
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / part).touch()
    others = f"{tmp_path}/mine/own.py:Env,mine/../mine/own.py:Env,none.py:Env,module:Env"
    files = hosts.own_files(["--algo", "mine/own.py:SPEC", "--env", f"{others},mine/own.py:Env,zipf(a.py:A,b.py:B;1)"])
    with tarfile.open(fileobj=io.BytesIO(hosts.pack(tmp_path, tmp_path / "keys", files))) as archive:
        assert archive.getnames()[0] == "config.yaml"
        assert [name for name in archive.getnames() if name.endswith(".py")] == ["mine/own.py", "a.py", "b.py"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home on every host; all hosts are this machine, by an ssh that starts a local shell."""
    program(tmp_path / "bin" / "ssh", 'while [ "$1" = -o ]; do shift 2; done; shift; exec setsid -w sh -c "$*"')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_workers_of_a_host_take_no_gpu_by_default_and_share_no_health_port() -> None:
    assert worker_flags(load_config([], {}), "i") == "--broker.device cpu --health.port 0"
    flags = worker_flags(load_config(["--broker.device", "cuda:1", "--health.port", "9000"], {}), "(i - 4)")
    said = subprocess.run(["sh", "-c", f"i=6; echo {flags}"], capture_output=True, text=True, check=True).stdout
    assert said == "--broker.device cuda:1 --health.port 9007\n"


ARCHIVE = subprocess.run(["tar", "-cf", "-", "-T", "/dev/null"], capture_output=True, check=True).stdout
FOR_EVER = "while true; do sleep 0.1; done"


def started() -> str:
    """The script of one start of a run called x."""
    options = Namespace(folder=Path("x"), first=4, workers=2, python="~/python", learner="tcp://a:1", flags="")
    return hosts.script_of(options, len(ARCHIVE))


@contextmanager
def connected(worker: str, home: Path, start: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """The shell of a host that runs two workers, each of which is a line of shell."""
    program(home / "python", f"# {worker}\n{worker}")
    script = ["sh", "-c", start or started()]
    with subprocess.Popen(script, stdin=subprocess.PIPE, start_new_session=True) as shell:
        assert shell.stdin is not None
        shell.stdin.write(ARCHIVE)
        shell.stdin.flush()
        try:
            yield shell
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)


def workers(shell: subprocess.Popen[bytes]) -> list[str]:
    """Numbers of the workers that a connection has started."""
    found = subprocess.run(["pgrep", "-a", "-g", str(shell.pid), "-f", "python -P"], capture_output=True, text=True)
    return sorted(line[-1] for line in found.stdout.splitlines() if " sh -c " not in line)


def test_workers_end_with_their_connection_and_before_those_of_the_next(home: Path) -> None:
    start = started()
    with connected(FOR_EVER, home, start) as lost:
        wait_until(lambda: workers(lost) == ["4", "5"])
        with connected(FOR_EVER, home, start) as shell:
            wait_until(lambda: workers(shell) == ["4", "5"])
            assert workers(lost) == []
            assert shell.stdin is not None
            (secret,) = (folder / "keys" / "secret" for folder in (home / ".zerobeast").iterdir())
            secret.mkdir(parents=True)
            shell.stdin.close()
            assert shell.wait(10) == 128 + signal.SIGTERM
            assert not secret.exists(), "with the connection, what has not ended yet may be killed"
            wait_until(lambda: not workers(shell))


def test_what_a_crash_of_a_host_has_left_goes_with_a_later_connection_and_nothing_else_does(home: Path) -> None:
    def left(name: str, group: str, age_s: float = 3600.0) -> Path:
        secret = home / ".zerobeast" / name / "keys" / "secret"
        secret.mkdir(parents=True)
        if group:
            (home / ".zerobeast" / name / "group").write_text(group)
        then = time.time() - age_s
        os.utime(home / ".zerobeast" / name, (then, then))
        return secret

    with subprocess.Popen(["true"], start_new_session=True) as ended:
        pass
    dead, torn = left("y-1", f"{ended.pid}\n"), left("y-2", "")
    begins, elsewhere = left("y-3", "", age_s=0.0), left("y-4", f"{ended.pid}\n", age_s=100.0)
    with connected(FOR_EVER, home) as one:
        wait_until(lambda: workers(one) == ["4", "5"])
        folder = next((home / ".zerobeast").glob("x-*"))
        os.utime(folder, (0, 0))
        keep(one)
        wait_until(lambda: folder.stat().st_mtime > 0)
        with connected(FOR_EVER, home) as other:  # another run of the same name
            wait_until(lambda: workers(one) == workers(other) == ["4", "5"])
            assert len(list((home / ".zerobeast").glob("x-*/group"))) == 2
    assert [path.exists() for path in (dead, torn, begins, elsewhere)] == [False, False, True, True]


def keep(shell: "subprocess.Popen[bytes]") -> None:
    """Send the line that keeps a connection."""
    assert shell.stdin is not None
    shell.stdin.write(b"\n")
    shell.stdin.flush()


def test_a_host_that_receives_nothing_ends_its_workers_and_removes_keys(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the launching machine had lost its power: the connection does not end."""
    monkeypatch.setattr(hosts, "STOP_S", 0.1)
    silent = home / "silent"
    program(home / "bin" / "timeout", f'[ -e {silent} ] && exit 124; exec {shutil.which("timeout")} "$@"')
    with connected(FOR_EVER, home) as shell:
        for _ in range(3):
            keep(shell)
        wait_until(lambda: workers(shell) == ["4", "5"])
        assert shell.poll() is None
        silent.touch()
        keep(shell)  # after this one
        assert shell.wait(10) == 128 + signal.SIGTERM
        wait_until(lambda: not workers(shell) and not list((home / ".zerobeast").iterdir()))


def test_a_connection_is_kept_by_a_line_every_turn(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "TURN_S", 0.01)
    counts = f"head -c {len(ARCHIVE)} > /dev/null; for n in 1 2 3; do read -r line || exit 8; done; exit 7"
    assert hosts.connect("one", counts, ARCHIVE, lambda within_s: bool(time.sleep(within_s))) == 7
    with connected("exit 2", home) as shell:
        assert shell.wait(10) == 2, "settings that no worker takes end it"


def described(home: Path) -> list[str]:
    """argv of the process that looks after a host of a run that is about to start."""
    config = load_config(["--root", str(home), "--name", "x", "--security.keys", str(home)], {})
    for part in (*hosts.FOR_WORKERS, "x/config.yaml"):
        (home / part).parent.mkdir(exist_ok=True)
        (home / part).touch()
    return hosts.host_command(Host("one", 1, "~/python"), 0, config)


@pytest.mark.parametrize(
    ("reached", "codes", "code"),
    [(False, [], 75), (True, [255, 2], 2), (True, [255, -signal.SIGTERM], 0)],
)
def test_a_host_is_connected_to_again_until_it_refuses_settings_or_the_run_ends(
    home: Path, monkeypatch: pytest.MonkeyPatch, reached: bool, codes: list[int], code: int
) -> None:
    program(home / "python", f"exit {int(not reached)}")
    left = iter(codes)

    def connect(*_: object) -> int:
        if (ended := next(left)) < 0:
            os.kill(os.getpid(), -ended)
        return ended

    monkeypatch.setattr(hosts, "connect", connect)
    monkeypatch.setattr(hosts, "PAUSE_S", 0.0)
    options = json.loads(described(home)[-1]) | {"supervisor_pid": os.getppid()}
    assert hosts.main([json.dumps(options)]) == code
    assert [*left] == []


@pytest.mark.slow
def test_the_workers_of_a_killed_supervisor_end(home: Path) -> None:
    program(home / "python", "case $* in *import*) exit;; esac; exec sleep 60")
    *argv, options = described(home)
    own = f"json.dumps(json.loads({options!r}) | {{'supervisor_pid': os.getpid()}})"
    script = f"import json, os, subprocess; subprocess.run({argv} + [{own}])"
    supervisor = python("-c", script, stderr=None)
    with killed_at_last(supervisor):
        helper = wait_until(lambda: psutil.Process(supervisor.pid).children())[0]
        worker = wait_until(lambda: named("sleep", helper))
        supervisor.kill()
        wait_until(lambda: not helper.is_running() and not worker.is_running())


def named(name: str, above: psutil.Process) -> psutil.Process | None:
    """A descendant of `above` with this name."""
    for process in above.children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            if process.name() == name:
                return process
    return None
