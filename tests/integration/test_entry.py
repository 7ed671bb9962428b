"""Start and end of a service process."""

import json
import logging
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
from typing import IO, Any

import pytest

from tests.build.errors import refuses
from tests.helpers import free_port, killed_at_last, python, wait_for_end, wait_until
from tests.integration import trivial_service
from zerobeast.common.config.process import Instance
from zerobeast.common.health.pages import fetch_page
from zerobeast.common.health.status import ExitRecord, State, read_status
from zerobeast.common.process.roles import ROLES
from zerobeast.common.process.signals import handle_signals
from zerobeast.common.process.usage import PREFERRED_FILES
from zerobeast.common.service import entry
from zerobeast.common.settings import RunConfig
from zerobeast.common.wire.messages import PROTOCOL_VERSION
from zerobeast.plan.processes import child_environ, service_command

Start = Callable[..., subprocess.Popen[str]]
SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
    code, _, errors = wait_for_end(process)
    return code, errors


def reached(folder: Path, step: str) -> None:
    """Wait until a service has come so far."""
    steps = folder / "steps"
    wait_until(lambda: steps.exists() and step in steps.read_text())


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What a process takes of the machine or leaves to others, as calls that change nothing of this one."""
    calls = list[tuple[Any, ...]]()
    for name in ("stay_on", "allow_files", "keep_freed_memory", "take_long_turns", "give_way"):
        monkeypatch.setattr(entry, name, lambda *given, name=name: calls.append((name, *given)))
    return calls


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[tuple[Any, ...]]) -> Callable[..., int]:
    """Run the trivial service in this process, with `tmp_path` as its root; returns the exit code."""

    def run(*flags: str | Path, role: str = "trivial", build: entry.Build = trivial_service.build) -> int:
        with handle_signals(SIGNALS, lambda *_: pytest.fail("a signal came late")), monkeypatch.context() as patch:
            patch.setattr(os, "environ", {**os.environ})
            patch.setattr(sys, "path", [*sys.path])
            patch.setattr(logging.getLogger(), "handlers", [])
            patch.setattr(entry.gc, "freeze", lambda: None)
            return entry.main(role, ["--root", str(tmp_path), *map(str, flags)], {}, build=build)

    return run


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize(("early", "steps"), [("", "1 1 open drain close "), ("early-", "1 1 building ")])
def test_a_signal_ends_it_with_0_after_draining_if_there_is_a_service(
    here: Callable[..., int], tmp_path: Path, name: str, early: str, steps: str
) -> None:
    assert here("--status-file", tmp_path / "trivial.json", "--name", early + name) == 0
    assert read_status(tmp_path / "trivial.json").end == ExitRecord("stopped", f"by {name}")
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


def test_status_file_health_page_and_the_first_line_of_the_log_say_what_it_is(start: Start, tmp_path: Path) -> None:
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
    assert os.sched_getscheduler(process.pid) == os.SCHED_BATCH, "it keeps its core for longer, as it may compute"
    limits = Path(f"/proc/{process.pid}/limits").read_text()
    assert re.search(rf"Max open files\s+{min(hard, PREFERRED_FILES)}\s+{hard}\s", limits), "all it may have"
    process.terminate()
    first, second, *_, last = finish(process)[1].splitlines()
    parts = (f", protocol {PROTOCOL_VERSION}, ", "learner.window=3 (flag)", "seed=9 (environment)")
    assert [part for part in parts if part not in first] == []
    assert ("--ppo.clip has no effect" in second, last.endswith("ended as stopped: by SIGTERM")) == (True, True)
    assert read_status(status) == (process.pid, socket.gethostname(), "", ExitRecord("stopped", "by SIGTERM"))


@pytest.mark.parametrize(
    ("name", "code", "lines"),
    [
        ("lost", 75, ["the broker did not answer", "for 60 s"]),
        ("wrong", 2, ["no such environment"]),
        ("extra", 2, ["torch is not installed: pip install 'zerobeast[torch]'"]),
        ("x y", 2, ["argument 'y': expected a flag such as --learner.batch_size 32"]),
        ("quits", 1, ["code that is not ours has called sys.exit(0)"]),
    ],
)
def test_a_failure_is_sentences_and_its_exit_code(
    here: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, code: int, lines: list[str]
) -> None:
    status = tmp_path / "status.json"
    assert here("--status-file", status, "--name", *name.split()) == code
    state: State = "crashed" if code == 1 else "failed"
    assert read_status(status).end == ExitRecord(state, "\n".join(lines), code)
    errors = capsys.readouterr().err
    assert [line for line in errors.splitlines() if line.startswith("trivial: ")] == [f"trivial: {x}" for x in lines]
    assert "Traceback" not in errors
    assert name in {"extra", "x y"} or "close" in (tmp_path / "steps").read_text()


def test_a_bug_keeps_its_traceback_and_a_full_disk_for_the_log_changes_no_exit_code(
    start: Start, here: Callable[..., int], tmp_path: Path
) -> None:
    status = tmp_path / "status.json"
    with pytest.raises(KeyError):
        here("--status-file", status, "--name", "bug")
    assert read_status(status).end == ExitRecord("crashed", "KeyError: 'bug'", 1)
    assert "close" in (tmp_path / "steps").read_text()
    for name, code in (("lost", 75), ("bug", 1)):  # sentences and a traceback
        with Path("/dev/full").open("w") as full:
            assert start("--name", name, stderr=full).wait() == code


@pytest.mark.parametrize(
    ("role", "threads", "calls"),
    [
        ("actor", 1, []),
        ("learner", 4, [("take_long_turns",)]),
        ("evaluator", 1, [("take_long_turns",), ("give_way", 15)]),
    ],
)
def test_what_a_process_has_of_the_cpu_is_fixed_before_its_service_is_imported(
    here: Callable[..., int], taken: list[Any], tmp_path: Path, role: str, threads: int, calls: list[Any]
) -> None:
    flags = ("--broker.threads", "3", "--learner.threads", "4", "--core", "1")
    assert here("--name", "SIGTERM", *flags, role=role) == 0
    assert taken == [("stay_on", 1), ("allow_files",), ("keep_freed_memory",), *calls]
    assert (tmp_path / "steps").read_text().startswith(f"{threads} {threads} ")


def test_services_of_one_process_have_a_page_and_a_status_file_each(here: Callable[..., int], tmp_path: Path) -> None:
    port, found = free_port(2), dict[str, tuple[str, Any]]()

    class Looks(trivial_service.Trivial):
        def take(self) -> None:
            address = read_status(tmp_path / f"{self.role}-3.json").health
            found[self.role] = address, fetch_page(address)["role"]
            self.outcome = "all is done"
            self.stop()

    kinds = [type(role, (Looks,), {"role": role}) for role in ("broker", "actor")]
    flags = ("--status-file", tmp_path / "worker-3.json", "--health.port", str(port))
    assert here(*flags, role="worker", build=lambda _, *given: [kind(*given) for kind in kinds]) == 0
    expected = {"broker": port, "actor": port + 1}
    assert found == {role: (f"127.0.0.1:{number}", role) for role, number in expected.items()}
    assert [read_status(tmp_path / f"{role}-3.json").end.state for role in expected] == ["finished"] * 2


def test_help_and_health_start_no_service(here: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert here("--help") == 0
    assert "--learner.batch_size" in capsys.readouterr().out
    assert entry.main("broker", ["health", "--endpoint", f"127.0.0.1:{free_port()}"], {}) == 2


def test_a_process_has_the_services_of_its_role_and_several_have_not_one_key() -> None:
    assert [type(each).__name__ for each in entry.services_of("actor", RunConfig(), Instance(index=0))] == ["Actor"]
    with refuses():
        entry.services_of("worker", RunConfig.model_validate({"security": {"secret": "a"}}), Instance(index=0))


@pytest.mark.parametrize("wrong", ["health.port", "status file"])
def test_an_address_in_use_and_an_unwritable_file_are_refused(start: Start, tmp_path: Path, wrong: str) -> None:
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
    code, _, errors = wait_for_end(python("bin/beast.py", cwd=folder))
    assert code == 0, errors
    for name in OF_PYTHON:  # which a service that is started without -P looks for earlier
        (folder / f"{name}.py").unlink()
    assert wait_for_end(python("-m", "zerobeast.services.broker", "--help", cwd=folder))[0] == 0
    assert not (folder / "sprung").exists()
