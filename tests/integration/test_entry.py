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
from zerobeast.common.process.roles import ROLES
from zerobeast.common.process.usage import PLENTY
from zerobeast.common.wire.messages import PROTOCOL_VERSION
from zerobeast.launcher.fleet import child_environ, service_command

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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_runs_drains_and_ends_it_with_0(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    status = tmp_path / "deeper" / "status.json"
    process = start("--status-file", str(status))
    wait_until(status.exists)
    process.send_signal(number)
    code, errors = finish(process)
    assert code == 0
    assert f"I ended by {number.name}\n" in errors
    assert "Traceback" not in errors
    assert "KeyboardInterrupt" not in errors
    assert (tmp_path / "steps").read_text() == "1 1 open drain close "


def test_a_storm_of_signals_ends_it_like_one(start: Start, tmp_path: Path) -> None:
    process = start()
    steps = tmp_path / "steps"
    wait_until(lambda: steps.exists() and "open" in steps.read_text())
    while process.poll() is None and "close" not in steps.read_text():
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
    code, errors = finish(process)
    assert (code, "Traceback" in errors) in {(0, False), (-signal.SIGINT, False), (-signal.SIGTERM, False)}
    assert steps.read_text() == "1 1 open drain close "


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_service_is_there_ends_the_process_at_once_with_0(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    process = start("--name", "slow")
    steps = tmp_path / "steps"
    wait_until(lambda: steps.exists() and "building" in steps.read_text())
    process.send_signal(number)
    code, errors = finish(process)
    assert (code, "Traceback" in errors) == (0, False)
    assert "open" not in steps.read_text()


def test_the_status_file_names_its_process_and_its_health_page(start: Start, tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    status = tmp_path / "status.json"
    process = start("--status-file", status, "--index", "3", few_files=True)
    wait_until(status.exists)
    found = json.loads(status.read_text())
    assert (found["role"], found["index"], found["pid"]) == ("trivial", 3, process.pid)
    assert list(tmp_path.glob("*.new")) == []
    page = wait_until(lambda: (page := fetch_page(found["health"])) and page.get("state") == "ready" and page)
    assert page["pid"] == process.pid
    limits = Path(f"/proc/{process.pid}/limits").read_text()
    assert re.search(rf"Max open files\s+{min(hard, PLENTY)}\s+{hard}\s", limits), "as many as the system allows"


def test_a_process_without_a_number_has_no_index(start: Start, tmp_path: Path) -> None:
    status = tmp_path / "status.json"
    code, errors = finish(start("--status-file", status, "--name", "once"))
    assert code == 0
    assert " trivial I zerobeast " in errors.splitlines()[0]
    assert json.loads(status.read_text())["index"] is None


def test_the_first_line_of_the_log_has_version_protocol_and_what_is_not_default(start: Start) -> None:
    process = start("--index", "2", "--name", "once", "--num_servers", "4", BEAST_SEED="9")
    code, errors = finish(process)
    first, second, *_ = errors.splitlines()
    assert code == 0
    assert " trivial-2 I zerobeast " in first
    assert f", protocol {PROTOCOL_VERSION}, " in first
    assert "name=once (flag)" in first
    assert "seed=9 (environment)" in first
    assert "--num_servers is not needed here" in second


@pytest.mark.parametrize(
    ("name", "code", "lines"),
    [
        ("lost", 75, ["trivial: the broker did not answer", "trivial: for 60 s"]),
        ("wrong", 2, ["trivial: no such environment"]),
        ("extra", 2, ["trivial: torch is not installed: pip install 'zerobeast[torch]'"]),
    ],
)
def test_a_failure_that_is_understood_is_a_sentence_and_its_exit_code(
    start: Start, name: str, code: int, lines: list[str]
) -> None:
    found, errors = finish(start("--name", name))
    assert found == code
    assert [line for line in errors.splitlines() if line.startswith("trivial: ")] == lines
    assert "Traceback" not in errors


def test_a_bug_keeps_its_traceback_and_exits_1(start: Start, tmp_path: Path) -> None:
    code, errors = finish(start("--name", "bug"))
    assert code == 1
    assert "KeyError: 'bug'" in errors
    assert "close" in (tmp_path / "steps").read_text()


def test_bad_settings_are_sentences_and_exit_2_before_anything_is_built(start: Start, tmp_path: Path) -> None:
    process = start("--index", "-1", "--learner.batch_sise", "4", BEAST_SEED="x")
    assert finish(process) == (
        2,
        "trivial: flag --learner.batch_sise: unknown setting; did you mean learner.batch_size?\n"
        "trivial: environment BEAST_SEED: got 'x', expected a whole number, at least 0 and at most 2147483647\n"
        "trivial: flag --index: got '-1', expected a whole number, at least 0 and at most 65535\n",
    )
    assert not (tmp_path / "steps").exists()


def test_a_port_in_use_is_a_sentence_and_exits_2(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, errors = finish(start("--health.port", str(port)))
    assert code == 2
    assert f"health.host '127.0.0.1', health.port {port}: cannot listen there: Address already in use" in errors
    assert "Traceback" not in errors


def test_a_status_file_that_cannot_be_written_is_a_sentence_and_exits_2(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, errors = finish(start("--status-file", str(tmp_path / "file" / "status.json")))
    assert code == 2
    assert f"trivial: status file {tmp_path}/file/status.json: cannot be written: " in errors


def test_a_service_starts_on_a_full_disk_and_announces_itself_once_there_is_room(start: Start, tmp_path: Path) -> None:
    status = tmp_path / "status.json"
    (tmp_path / "full").touch()
    process = start("--status-file", str(status))
    wait_until(lambda: "open" in (tmp_path / "steps").read_text() if (tmp_path / "steps").exists() else None)
    assert not status.exists()
    (tmp_path / "full").unlink()
    wait_until(status.exists)
    process.terminate()
    code, errors = finish(process)
    assert code == 0
    assert "status.json cannot be written: No space left on device; it is tried again" in errors


@pytest.mark.parametrize(("name", "code"), [("wrong", 2), ("lost", 75)])
def test_the_exit_code_is_right_although_the_log_is_on_a_full_disk(start: Start, name: str, code: int) -> None:
    with Path("/dev/full").open("w") as full:
        assert start("--name", name, stderr=full).wait() == code


@pytest.mark.parametrize(("role", "threads"), [("broker", "3"), ("learner", "4"), ("envserver", "1")])
def test_the_number_of_threads_is_fixed_before_the_service_is_imported(
    start: Start, tmp_path: Path, role: str, threads: str
) -> None:
    flags = ["--broker.threads", "3", "--learner.threads", "4", "--envserver.threads", "5"]
    assert finish(start("--name", "once", *flags, ROLE=role))[0] == 0
    assert (tmp_path / "steps").read_text().startswith(f"{threads} {threads} ")


def test_garbage_is_not_looked_for_in_what_is_imported_to_build_a_service(start: Start, tmp_path: Path) -> None:
    assert finish(start("--name", "tidy"))[0] == 0
    assert (tmp_path / "steps").read_text() == "1 1 False open True True drain close "


@pytest.mark.parametrize(("role", "policy"), [("learner", os.SCHED_BATCH), ("actor", os.SCHED_OTHER)])
def test_a_service_that_computes_keeps_its_core_for_longer(
    start: Start, tmp_path: Path, role: str, policy: int
) -> None:
    status = tmp_path / "status.json"
    process = start("--status-file", str(status), ROLE=role)
    wait_until(status.exists)
    assert os.sched_getscheduler(process.pid) == policy


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


@pytest.mark.parametrize("role", [*ROLES, "worker"])
def test_no_service_prefers_the_folder_that_it_is_started_in(
    role: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    command = service_command(role, "--help")
    assert subprocess.run(command, env=child_environ(os.environ), capture_output=True).returncode == 0
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


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-m", "zerobeast", "train", "--env", "CartPole-v1"],
        service_command("envserver", "describe", "--env=CartPole-v1"),
        [sys.executable, "-m", "zerobeast.services.broker", "--env", "CartPole-v1", "--name", "x"],
    ],
    ids=["command", "description", "service"],
)
def test_a_start_in_a_folder_that_is_gone_is_refused_with_one_sentence(command: list[str], folder: Path) -> None:
    gone = ["sh", "-c", f'mkdir "{folder}/gone" && cd "{folder}/gone" && rmdir "{folder}/gone" && exec "$@"', "sh"]
    found = subprocess.run([*gone, *command], env=child_environ(os.environ), capture_output=True, text=True)
    assert found.returncode == 2, found.stderr
    assert found.stderr.splitlines()[-1].endswith(": the current folder: No such file or directory")


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
    assert not (folder / "sprung").exists()


def test_a_service_that_is_started_without_p_does_not_search_that_folder_for_what_it_needs(folder: Path) -> None:
    for name in OF_PYTHON:  # which it looks for earlier
        (folder / f"{name}.py").unlink()
    assert finished(python("-m", "zerobeast.services.broker", "--help", cwd=folder))[0] == 0
    assert not (folder / "sprung").exists()


def test_a_relative_root_stays_where_it_was_if_an_environment_changes_the_folder(start: Start, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    process = start("--root", "runs", "--name", "away", cwd=tmp_path)
    assert finish(process)[0] == 0
    assert (tmp_path / "runs" / "steps").read_text().endswith("open away drain close ")


WITHOUT_TORCH = (
    "import sys, runpy; sys.modules['torch'] = None; runpy.run_module(sys.argv.pop(1), {}, '__main__', alter_sys=True)"
)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("flags", "code", "out", "err"),
    [
        (["--help"], 0, "--learner.batch_size ", ""),
        (["--sed", "1"], 2, "", "flag --sed: unknown setting; did you mean seed?"),
    ],
)
def test_help_and_bad_settings_of_every_service_need_no_torch(
    role: str, flags: list[str], code: int, out: str, err: str
) -> None:
    ended, said, errors = finished(python("-c", WITHOUT_TORCH, f"zerobeast.services.{role}", *flags))
    assert ended == code
    assert out in said
    assert errors == (f"{role}: {err}\n" if err else "")
