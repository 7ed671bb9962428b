"""A folder of a run that comes from somebody else: nothing in it leads out of it, keeps a command waiting or draws."""

import ast
import hmac
import json
import logging
import os
import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.build.errors import refuses
from tests.build.folders import save_run
from tests.build.starts import resolve_new_run
from tests.helpers import ROOT, no_file_longer_than, wait_until
from zerobeast.api.policies import find_policy
from zerobeast.cli import health
from zerobeast.cli.main import main
from zerobeast.common.config.layers import read_yaml
from zerobeast.common.errors import BeastError, CheckpointError, ConfigError
from zerobeast.common.files import metrics, run_files
from zerobeast.common.files.atomic import Journal, write_atomically
from zerobeast.common.files.regular_files import MAX_TEXT_BYTES, open_regular
from zerobeast.common.files.state import seal
from zerobeast.common.health import status
from zerobeast.common.health.figures import ServiceView
from zerobeast.common.process.terminal import say
from zerobeast.common.settings import RunConfig
from zerobeast.discovery.folder_services import find_newest, services_of
from zerobeast.launcher.child import Child
from zerobeast.launcher.foreign_processes import ForeignProcess, find_processes
from zerobeast.launcher.pages import Gatherer, Snapshot
from zerobeast.launcher.screen import PipeConsole, make_screen
from zerobeast.launcher.view import render_screen
from zerobeast.plan.processes import ProcessSpec
from zerobeast.plan.run_folder import lock_folder
from zerobeast.rl.nets.checkpoint import load_checkpoint
from zerobeast.services.learner.folder import claim
from zerobeast.tracking.feed import Feed
from zerobeast.tracking.process import hold_lock

TITLE = "\x1b]0;mine\x07"  #: changes the title of a terminal


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with files that no run may touch."""
    (tmp_path / "home").mkdir()
    for name in ("authorized_keys", "package.json"):
        (tmp_path / "home" / name).write_text("mine\n")
    return tmp_path / "home"


@pytest.fixture
def gift(tmp_path: Path) -> Path:
    """The folder of a run."""
    folder = save_run(tmp_path / "runs", "gift", {}, algo="impala")
    for part in ("logs", "services", "wandb"):
        (folder / part).mkdir()
    return folder


@pytest.mark.parametrize(
    ("place", "target"),
    [
        ("logs/learner-0.log", "home/authorized_keys"),
        ("logs/learner-0.log", "home/new"),
        ("services", "home"),
        (".lock", "home/authorized_keys"),
        ("wandb/x", "home"),
        ("logs/x.log", "runs/gift/store/package.json"),  # by way of the store, which may be a link
        ("services/learner-0.json", ""),
    ],
)
def test_a_folder_that_leads_elsewhere_is_refused_before_anything_is_written(
    gift: Path, outside: Path, place: str, target: str
) -> None:
    (gift / "store").symlink_to(outside)
    if (gift / place).is_dir():
        (gift / place).rmdir()
    if target:
        (gift / place).symlink_to(gift.parents[1] / target)
    else:
        os.mkfifo(gift / place)
    before = sorted(gift.rglob("*"))
    for claim_of in (lock_folder, claim, lambda folder: hold_lock(folder, "wandb")):
        with pytest.raises(ConfigError, match=str(gift / place)), claim_of(gift):
            pytest.fail("it was claimed")
    assert sorted(gift.rglob("*")) == before
    assert [path.read_text() for path in sorted(outside.iterdir())] == ["mine\n"] * 2


@pytest.mark.parametrize("claim_of", [lock_folder, claim])
def test_a_folder_of_something_else_does_not_become_that_of_a_run(
    gift: Path, outside: Path, claim_of: Callable[[Path], AbstractContextManager[Any]]
) -> None:
    (gift.parent / "link").symlink_to(outside)
    with pytest.raises(ConfigError, match="runs/link"), claim_of(gift.parent / "link"):
        pytest.fail("it was claimed")
    assert sorted(path.name for path in outside.iterdir()) == ["authorized_keys", "package.json"]
    for name in ("authorized_keys", "package.json"):
        (outside / name).unlink()
    with claim_of(gift.parent / "link"):  # empty: runs may be on another disk
        pass
    with claim_of(outside):  # a start that was killed before it wrote the settings
        (outside / ".config.yaml.new").touch()
    with claim_of(outside):
        pass


def test_a_start_removes_no_files_but_those_of_earlier_services(gift: Path) -> None:
    for name in ("learner-0.json", "worker-12.json", "package.json", "tsconfig-1.json"):
        (gift / "services" / name).write_text("{}")
    status.clear_statuses(gift / "services")
    assert sorted(path.name for path in (gift / "services").iterdir()) == ["package.json", "tsconfig-1.json"]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_what_is_appended_to_is_no_link_even_if_that_appeared_after_the_look(
    gift: Path, outside: Path, link: Callable[[Path, Path], None]
) -> None:
    log, key = gift / "logs" / "learner-0.log", outside / "authorized_keys"
    link(key, log)
    command = [sys.executable, "-c", "print('ssh-ed25519 AAAA')"]
    with pytest.raises(BeastError, match=str(log)):
        Child(ProcessSpec("learner", 0, command, {}, log, Path())).start()
    for write in (Journal, lambda path: open_regular(path, "wb")):
        with pytest.raises(OSError, match=str(log)):
            write(log)
    assert key.read_text() == "mine\n"


def test_files_of_a_run_that_are_replaced_may_have_other_names(gift: Path, tmp_path: Path) -> None:
    settings = gift / "config.yaml"
    os.link(settings, tmp_path / "backup")
    for link, target in (("store", tmp_path / "large-disk"), ("wandb/latest-run", "run-1"), ("wandb/root", gift)):
        (gift / link).symlink_to(target)  # our own
    for name in ("checkpoint.pt", ".lock"):
        (gift / name).touch()
    (gift / "evaluate").mkdir()
    os.link(gift / "checkpoint.pt", gift / "evaluate" / "5.pt")
    with lock_folder(gift), claim(gift):
        write_atomically(settings, "env: CartPole-v1\n", durable=False)
    assert "impala" in (tmp_path / "backup").read_text()
    os.link(gift / ".lock", tmp_path / "lock")
    with refuses(), lock_folder(gift):
        pytest.fail("it was claimed")


def test_the_folder_of_another_user_takes_a_flag(gift: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["--name", "gift", "--env", "CartPole-v1"]
    resolve_new_run(gift.parent, *argv)
    monkeypatch.setattr(os, "geteuid", lambda: gift.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="--trust_folder"):
        resolve_new_run(gift.parent, *argv)
    resolve_new_run(gift.parent, *argv, "--trust_folder")


def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(gift: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("services/learner-0.json", "checkpoint.pt", "run.yaml", ".lock", "position", "logs/learner-0.log"):
        os.mkfifo(gift / name)
    (gift / "metrics.csv").unlink()
    os.mkfifo(gift / "metrics.csv")
    os.mkfifo(gift.parent / "latest")
    (gift / "services" / "broker-0.json").symlink_to("nowhere")
    assert [view.note for view in services_of(gift, remote=False)] == ["no answer"] * 2
    assert find_processes(gift) == []
    assert health.main(["--run", "gift", "--root", str(gift.parent)]) == 2
    assert find_newest(gift.parent) == gift
    assert run_files.candidate_paths("latest", gift.parent)[0] == gift.parent / "latest"
    assert not run_files.is_held(gift / ".lock")
    assert metrics.read_last_row(gift) == {}
    assert Feed(gift, gift / "position").position.metrics == -1
    with pytest.raises(ConfigError, match=r"run\.yaml"):
        read_yaml(gift / "run.yaml", "run.yaml")
    with pytest.raises(CheckpointError):
        load_checkpoint(gift / "checkpoint.pt")


def test_health_and_watch_ask_no_address_beyond_this_machine_that_only_a_file_names(
    gift: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def refuse(address: tuple[str, int], _timeout_s: float) -> None:
        asked.append(address[0])
        raise ConnectionRefusedError

    monkeypatch.setattr("socket.create_connection", refuse)
    for name, page in {
        "learner-0": {"health": "192.0.2.1:80"},
        "broker-0": {"health": "evil.example:80"},
        "actor-0": {"health": "0.0.0.0:80", "host": "node9.example"},
        "envserver-0": {"health": "127.0.0.1:80"},
    }.items():
        (gift / "services" / f"{name}.json").write_text(json.dumps(page | {"pid": 1}))
    services_of(gift, remote=True)
    assert sorted(asked) == ["127.0.0.1", "192.0.2.1", "evil.example", "node9.example"]
    asked.clear()
    assert health.main(["--run", "gift", "--root", str(gift.parent)]) == 2
    shown = capsys.readouterr().out
    assert all(host in shown for host in ("192.0.2.1", "evil.example", "node9.example", "--remote"))
    assert asked == ["127.0.0.1"]


@pytest.mark.parametrize(
    "text", [TITLE, "[link=http://evil.example/x]click[/link]", "[/x]", ":smile: https://evil.example"]
)
def test_pages_cannot_control_the_terminal_of_the_live_view(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr("zerobeast.launcher.screen.LINE_PERIOD_S", 0.0)
    page = {"state": text, "agent_steps": 1, "mean_return_100_by_task": {text: 1.0}}
    snapshot = Snapshot((ServiceView("learner 0", "learner", page),), (f"learner 0: {text}",))
    make_screen(RunConfig(name="x"), lambda: snapshot, plain=True).update(stopping=False)
    PipeConsole(force_terminal=True, width=200).print(render_screen(RunConfig(name="x"), snapshot))
    shown = capsys.readouterr().out
    for line in (f"{text} 1.00", f"learner 0: {text}"):
        assert line.replace("\x1b", r"\x1b").replace("\x07", "") in shown
    assert not any(control in shown for control in ("\x1b]", "\x07"))


def test_a_cpu_time_that_is_no_number_counts_as_none(gift: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerobeast.launcher.pages.fetch_announced_page", lambda *_, **__: {"cpu_s": "x"})
    worker = ForeignProcess(ProcessSpec("worker", 0, (), {}, gift / "x.log", gift / "services" / "worker-0.json"), -1)
    with Gatherer(lambda: [worker]) as pages:
        wait_until(lambda: all(view.page for view in pages.snapshot().services))


def test_of_tables_and_logs_of_holes_no_more_than_the_end_is_read(
    gift: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for table in ("evaluations.csv", "metrics.csv"):
        with (gift / table).open("wb") as file:
            file.truncate(1 << 40)
        assert main(["compare", "gift", "--root", str(gift.parent)]) == 2
        assert f"gift/{table}" in capsys.readouterr().err
        assert metrics.Rows(gift).new() == []
        (gift / table).unlink()
    (gift / "services" / "learner-0.json").write_text("{}")
    with (gift / "logs" / "learner-0.log").open("wb") as file:
        file.seek(1 << 40)
        file.write(b"\nlearner: the end\n")
    assert [view.note for view in services_of(gift, remote=False)] == ["learner: the end"]


def test_files_cannot_control_the_terminal_of_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lr.yaml").write_text(f"seeds: [1]\nsettings: {{env: CartPole-v1, total_steps: {json.dumps(TITLE)}}}\n")
    assert main(["sweep", str(tmp_path / "lr.yaml"), "--dry_run", "--parallel", "1"]) == 2
    say(f"learner 0 ended: {TITLE}\nits log", sys.stderr)
    assert logging.lastResort is not None
    logging.lastResort.emit(logging.makeLogRecord({"msg": f"no curves of {TITLE}", "levelno": logging.WARNING}))
    output = capsys.readouterr()
    assert "\x1b" not in output.out + output.err
    assert output.err.endswith("\\x1b]0;mine\\x07\nits log\nno curves of \\x1b]0;mine\\x07\n")


def test_one_module_alone_writes_to_the_terminal() -> None:
    parts = ("zerobeast", "common", "services", "tools")
    files = {path.resolve() for part in parts for path in (ROOT / part).rglob("*.py")}
    of_other_programs = ROOT / "tools" / "zerobeast_tools" / "bench" / "peers" / "runners"
    ours = {file for file in files if of_other_programs not in file.parents} - {ROOT / "common/process/terminal.py"}
    speaking = {file: text for file in ours if re.search(r"\bprint\b|\bstd(out|err)\b", text := file.read_text())}
    nodes = ((file, node) for file, text in speaking.items() for node in ast.walk(ast.parse(text)))
    called = [(file.name, ast.unparse(node.func)) for file, node in nodes if isinstance(node, ast.Call)]
    direct = {"print", *(f"sys.{name}.{call}" for name in ("stdout", "stderr") for call in ("write", "writelines"))}
    assert [(file, call) for file, call in called if call in direct] == []


def test_nothing_in_the_current_folder_hides_a_run_of_that_name(
    tmp_path: Path, gift: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gift / "checkpoint.pt").touch()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gift").mkdir()
    (tmp_path / "gift" / "model.safetensors").touch()
    assert find_policy("gift", gift.parent) == gift
    assert find_policy("./gift", gift.parent) == tmp_path / "gift"


def test_a_file_that_the_user_names_may_be_a_pipe(tmp_path: Path) -> None:
    for name, text in (("config", "env: CartPole-v1\ntotal_steps: 7\n"), ("long", "#" * MAX_TEXT_BYTES)):
        os.mkfifo(tmp_path / name)
        Thread(target=(tmp_path / name).write_text, args=(f"{text}\n",), daemon=True).start()
    assert resolve_new_run(tmp_path, "--name", "x", "--config", str(tmp_path / "config")).config.total_steps == 7
    with refuses():
        resolve_new_run(tmp_path, "--name", "x", "--config", str(tmp_path / "long"))


def test_the_run_of_a_tracker_is_chosen_by_nobody_else_and_for_the_folder_that_its_position_is_in(gift: Path) -> None:
    (mine := gift.parent / "mine").mkdir()
    position = mine / ".tracked-wandb.json"
    own = Feed(mine, position).position.id
    for folder, name in ((gift, ".tracked-wandb.json"), (mine, ".tracked-other.json")):
        (folder / name).write_bytes(position.read_bytes())
        assert Feed(folder, folder / name).position.id != own
    assert Feed(mine, position).position.id == own, "it goes on"
    mark, text = json.loads(position.read_text())
    theirs = text.replace(own, "theirs")
    for forged in ([mark, theirs], ["é", theirs], [5, theirs], [], {}, json.loads(theirs), "[" * 100_000):
        position.write_text(forged if isinstance(forged, str) else json.dumps(forged))
        assert Feed(mine, position).position.id not in ("theirs", own)


def test_a_seal_has_a_whole_key_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with no_file_longer_than(0), pytest.raises(OSError, match="File too large"):
        seal("x")
    assert seal("x") == seal("x") != hmac.new(b"", b"x", "sha256").hexdigest()
    (secret,) = (tmp_path / "zerobeast").iterdir()
    assert secret.stat().st_mode & 0o77 == 0
    secret.write_bytes(b"")
    with pytest.raises(OSError, match=str(secret)):
        seal("x")
