"""Start and end of a service process."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest

from tests.helpers import finished, killed_at_last, python, wait_until
from zerobeast.common.health.pages import fetch_page
from zerobeast.common.health.status import ExitRecord, State, read
from zerobeast.common.process.roles import ROLES
from zerobeast.common.process.usage import PLENTY
from zerobeast.common.wire.messages import PROTOCOL_VERSION
from zerobeast.plan.processes import child_environ, service_command

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the trivial service, with `tmp_path` as its root."""
    with ExitStack() as stack:

        def starter(
            *flags: str | Path,
            few_files: bool = False,
            cwd: Path | None = None,
            stderr: IO[str] | int = subprocess.PIPE,
            **variables: str,
        ) -> subprocess.Popen[str]:
            command = ("-m", "tests.integration.trivial_service", "--root", tmp_path, *flags)
            limit = _few_files if few_files else None
            variables = {"OMP_NUM_THREADS": "7", **variables}
            process = python(*command, variables=variables, preexec_fn=limit, cwd=cwd, stderr=stderr)
            stack.enter_context(killed_at_last(process))
            return process

        yield starter


def _few_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 100), hard))


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code and what was said on stderr."""
    code, _, errors = finished(process)
    return code, errors


def reached(folder: Path, step: str) -> None:
    """Wait until a service has come so far."""
    steps = folder / "steps"
    wait_until(lambda: steps.exists() and step in steps.read_text())


@pytest.mark.parametrize(
    ("number", "name", "at", "steps"),
    [
        (signal.SIGTERM, "x", "open", "1 1 open drain close "),
        (signal.SIGINT, "x", "open", "1 1 open drain close "),
        (signal.SIGINT, "slow", "building", "1 1 building "),
    ],
)
def test_a_signal_ends_it_with_0_after_draining_if_there_is_a_service(
    start: Start, tmp_path: Path, number: signal.Signals, name: str, at: str, steps: str
) -> None:
    process = start("--name", name)
    reached(tmp_path, at)
    process.send_signal(number)
    code, errors = finish(process)
    assert (code, "Traceback" in errors, "KeyboardInterrupt" in errors) == (0, False, False)
    assert (tmp_path / "steps").read_text() == steps


def test_a_storm_of_signals_ends_it_like_one(start: Start, tmp_path: Path) -> None:
    process = start()
    reached(tmp_path, "open")
    steps = tmp_path / "steps"
    while process.poll() is None and "close" not in steps.read_text():
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
    code, errors = finish(process)
    assert (code, "Traceback" in errors) in {(0, False), (-signal.SIGINT, False), (-signal.SIGTERM, False)}
    assert steps.read_text() == "1 1 open drain close "


def test_its_status_file_its_health_page_and_the_first_line_of_its_log_say_what_it_is(
    start: Start, tmp_path: Path
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    status = tmp_path / "deeper" / "status.json"
    flags = ("--index", "3", "--learner.window", "3", "--ppo.clip", "0.1")
    process = start("--status-file", status, *flags, few_files=True, BEAST_SEED="9")
    wait_until(status.exists)
    found = json.loads(status.read_text())
    assert (found["role"], found["index"], found["pid"]) == ("trivial", 3, process.pid)
    assert list(status.parent.glob("*.new")) == []
    page = wait_until(lambda: (page := fetch_page(found["health"])) and page.get("state") == "ready" and page)
    assert page["pid"] == process.pid
    limits = Path(f"/proc/{process.pid}/limits").read_text()
    assert re.search(rf"Max open files\s+{min(hard, PLENTY)}\s+{hard}\s", limits), "as many as the system allows"
    process.terminate()
    first, second, *_, last = finish(process)[1].splitlines()
    parts = (f", protocol {PROTOCOL_VERSION}, ", "learner.window=3 (flag)", "seed=9 (environment)")
    assert [part for part in parts if part not in first] == []
    assert ("--ppo.clip has no effect" in second, last.endswith("ended as stopped: by SIGTERM")) == (True, True)
    assert read(status) == (process.pid, socket.gethostname(), "", ExitRecord("stopped", "by SIGTERM"))


@pytest.mark.parametrize(
    ("name", "code", "lines"),
    [
        ("lost", 75, ["the broker did not answer", "for 60 s"]),
        ("wrong", 2, ["no such environment"]),
        ("extra", 2, ["torch is not installed: pip install 'zerobeast[torch]'"]),
        ("x y", 2, ["argument 'y': expected a flag such as --learner.batch_size 32"]),
        ("quits", 1, ["code that is not ours has called sys.exit(0)"]),
        ("bug", 1, []),
    ],
)
def test_a_failure_is_sentences_and_its_exit_code_and_a_bug_keeps_its_traceback(
    start: Start, tmp_path: Path, name: str, code: int, lines: list[str]
) -> None:
    status = tmp_path / "status.json"
    found, errors = finish(start("--status-file", status, "--index", "3", "--name", *name.split()))
    assert found == code
    state: State = "crashed" if code == 1 else "failed"
    end = ExitRecord(state, "\n".join(lines) or "KeyError: 'bug'", code)
    assert read(status).end == end
    assert [line for line in errors.splitlines() if line.startswith("trivial: ")] == [f"trivial: {x}" for x in lines]
    assert ("Traceback" in errors, "KeyError: 'bug'" in errors) == (name == "bug", name == "bug")
    assert name in {"extra", "x y"} or "close" in (tmp_path / "steps").read_text()
    if name in {"lost", "bug"}:  # sentences and a traceback
        with Path("/dev/full").open("w") as full:
            assert start("--name", name, stderr=full).wait() == code, "also if the log is on a full disk"


@pytest.mark.parametrize("wrong", ["health.port", "status file"])
def test_an_address_in_use_and_a_file_that_cannot_be_written_are_refused(
    start: Start, tmp_path: Path, wrong: str
) -> None:
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = {"health.port": ("--health.port", port), "status file": ("--status-file", tmp_path / "file" / "x.json")}
        code, errors = finish(start(*flags[wrong]))
    assert (code, wrong in errors.splitlines()[-1], "Traceback" in errors) == (2, True, False)


def test_a_service_starts_on_a_full_disk_and_announces_itself_once_there_is_room(start: Start, tmp_path: Path) -> None:
    status = tmp_path / "status.json"
    (tmp_path / "full").touch()
    process = start("--status-file", str(status))
    reached(tmp_path, "open")
    assert not status.exists()
    (tmp_path / "full").unlink()
    wait_until(status.exists)
    process.terminate()
    code, errors = finish(process)
    assert (code, "No space left on device" in errors) == (0, True)


@pytest.mark.parametrize(
    ("role", "threads", "policy"), [("learner", "4", os.SCHED_BATCH), ("actor", "1", os.SCHED_OTHER)]
)
def test_what_a_service_has_of_the_cpu_is_fixed_before_it_is_imported(
    start: Start, tmp_path: Path, role: str, threads: str, policy: int
) -> None:
    process = start("--broker.threads", "3", "--learner.threads", "4", ROLE=role)
    reached(tmp_path, "open")
    assert (tmp_path / "steps").read_text().startswith(f"{threads} {threads} ")
    assert os.sched_getscheduler(process.pid) == policy, "it keeps its core for longer if it computes"


def test_a_relative_root_stays_where_it_was(start: Start, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    process = start("--root", "runs", "--name", "away", cwd=tmp_path)  # an environment changes the folder
    assert finish(process)[0] == 0
    assert (tmp_path / "runs" / "steps").read_text().endswith("open away drain close ")


#: modules of Python, of any system, and one that it imports if it is there
OF_PYTHON = (*sys.stdlib_module_names, "org")
#: a package that we need, those of backends that are not installed, and a plug-in
TRAPS = (*OF_PYTHON, "yaml", "gfootball", "mpe2", "plugged")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder: an environment that needs a module beside it, and files that nothing but a reference is to run.

    Some have names of Python's own modules, one that of a plug-in in a package description.
    """
    for name in TRAPS:
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'sprung')!r}, 'a').write({name!r}); raise SystemExit(9)"
        )
    description = tmp_path / "plugged-1.0.dist-info"
    description.mkdir()
    (description / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (description / "entry_points.txt").write_text("[pydantic]\nit = plugged:it\n[gymnasium.envs]\nit = plugged:it\n")
    (tmp_path / "helper.py").write_text("from gymnasium.envs.classic_control import CartPoleEnv as Base")
    (tmp_path / "own.py").write_text("import gymnasium, helper; gymnasium.register('Own-v0', helper.Base)")
    return tmp_path


#: services one after another in a process without torch, each for its help and with a bad setting
WITHOUT_TORCH = """
import os, runpy, sys
sys.modules["torch"], os._exit, roles = None, sys.exit, sys.argv[1:]
for role, flag, expected in [(role, *case) for role in roles for case in (("--help", 0), ("--sed=1", 2))]:
    sys.argv[1:] = [flag]
    try:
        runpy.run_module(f"zerobeast.services.{role}", {}, "__main__", alter_sys=True)
    except SystemExit as end:
        assert end.code == expected, f"{role} {flag} ends with {end.code}"
    else:
        raise AssertionError(f"{role} {flag} goes on")
print("all of them end")
"""


def test_help_and_bad_settings_need_no_torch_and_no_file_of_the_folder_of_a_service(folder: Path) -> None:
    command = [sys.executable, "-P", "-c", WITHOUT_TORCH, *ROLES, "worker"]
    found = subprocess.run(command, env=child_environ(os.environ), cwd=folder, capture_output=True, text=True)
    assert found.stdout.splitlines()[-1:] == ["all of them end"], found.stderr
    assert not (folder / "sprung").exists()


def described(folder: Path, *flags: str) -> "subprocess.CompletedProcess[bytes]":
    environ = {name: value for name, value in child_environ(os.environ).items() if name != "PYTHONPATH"}
    command = service_command("envserver", "describe", *flags)
    return subprocess.run(command, env=environ, cwd=folder, capture_output=True)


@pytest.mark.parametrize(
    ("env_id", "in_process"), [("own:Own-v0", "true"), ("own:Own-v0", "false"), ("MountainCar-v0", "false")]
)
def test_what_a_reference_names_is_found_in_the_folder_that_a_process_was_started_in_and_nothing_else(
    env_id: str, in_process: str, folder: Path
) -> None:
    found = described(folder, f"--env={env_id}", "--envserver.in_process", in_process)
    assert json.loads(found.stdout)["env_id"] == env_id, found.stderr
    assert not (folder / "sprung").exists()


@pytest.mark.parametrize("env_id", ["gfootball/academy_empty_goal", "pettingzoo/mpe/simple_v3"])
def test_a_package_that_is_missing_is_not_looked_for_in_that_folder(env_id: str, folder: Path) -> None:
    (folder / "gift.yaml").write_text(f"env: {env_id}")
    found = described(folder, "--config", "gift.yaml")
    assert found.returncode == 2, found.stdout
    assert not (folder / "sprung").exists()


COMMAND = """
import multiprocessing
from zerobeast.cli.main import main
if __name__ == "__main__":
    main(["--version"])
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()
    assert process.exitcode == 0
"""


def test_processes_that_a_command_spawns_do_not_prefer_the_folder_either(folder: Path) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "beast.py").write_text(COMMAND)  # a script, as pip makes one
    code, _, errors = finished(python("bin/beast.py", cwd=folder))
    assert code == 0, errors
    for name in OF_PYTHON:  # which a service that is started without -P looks for earlier
        (folder / f"{name}.py").unlink()
    assert finished(python("-m", "zerobeast.services.broker", "--help", cwd=folder))[0] == 0
    assert not (folder / "sprung").exists()
