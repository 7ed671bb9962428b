"""Gathering the health pages of children: those that answer, those that never do, and their warnings."""

import json
import os
import socket
import sys
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.helpers import wait_until
from zerobeast.common.health.pages import fetch_announced_page, fetch_page, read_announcement
from zerobeast.launcher.child import Child
from zerobeast.launcher.foreign_processes import ForeignProcess
from zerobeast.launcher.pages import Gatherer
from zerobeast.plan.processes import ProcessSpec

#: a real service with a health page
SERVICE = """
import json, logging, os, pathlib, sys
from zerobeast.common.settings.run import HealthConfig
from zerobeast.common.service.health_server import HealthServer
from zerobeast.common.process.logs import log_to_stderr
from zerobeast.common.service.base import Service
from zerobeast.common.service.loop import Loop
class Idle(Service):
    role = "broker"
    def open(self):
        for _ in range(2): logging.getLogger("x").warning("something is odd")
    def take(self): pass
    def report(self): return {"clients": 7}
log_to_stderr("broker-0")
service = Idle()
with HealthServer(service, HealthConfig()) as health:
    page = f"127.0.0.1:{health.port}"
    pathlib.Path(sys.argv[1]).write_text(json.dumps({"health": page, "pid": os.getpid()}))
    Loop([service]).run()
"""


def child_of(folder: Path, name: str, code: str) -> Child:
    status = folder / f"{name}.json"
    command = [sys.executable, "-c", code, str(status)]
    environ = dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return Child(ProcessSpec(name, 0, command, environ, folder / f"{name}.log", status))


def test_pages_usage_and_warnings_of_children_are_gathered_though_one_never_answers(tmp_path: Path) -> None:
    silent, child = child_of(tmp_path, "actor", "import time; time.sleep(600)"), child_of(tmp_path, "broker", SERVICE)
    with socket.create_server(("127.0.0.1", 0)) as deaf, Gatherer(lambda: [silent, child]) as pages:
        assert pages.snapshot().page("broker") == {}
        silent.start()
        child.start()
        (tmp_path / "actor.json").write_text(json.dumps({"health": f"127.0.0.1:{deaf.getsockname()[1]}"}))
        try:
            wait_until(lambda: pages.snapshot().page("broker").get("state") == "ready")
            wait_until(lambda: pages.snapshot().services[1].cpu_share is not None)
            wait_until(lambda: pages.snapshot().warnings)
            snapshot = pages.snapshot()
        finally:
            for each in (silent, child):
                each.kill()
            wait_until(lambda: silent.poll() is not None and child.poll() is not None)
        assert (snapshot.page("broker")["clients"], snapshot.page("actor")) == (7, {})
        assert snapshot.warnings == ("broker 0: something is odd",)
        wait_until(lambda: pages.snapshot().services[1].code == -9)


def test_a_reason_that_several_services_give_is_shown_once_also_when_children_cannot_be_found_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = [ForeignProcess(child_of(tmp_path, name, "").spec, -1) for name in ("broker", "actor", "learner")]
    find = Mock(side_effect=chain([children, OSError("stale file handle")], repeat(children)))
    said = dict[str, list[str]]()

    def page(status: Path, *_: object, remote: bool) -> dict[str, Any]:
        found = enumerate(said.get(status.stem, []))
        return {"pid": 7, "warnings": [[], 5, [1, 2, 3], *([at, f"refused a message: {text}"] for at, text in found)]}

    monkeypatch.setattr("zerobeast.launcher.pages.fetch_announced_page", page)
    with Gatherer(find) as pages:
        wait_until(lambda: any("stale" in warning for warning in pages.snapshot().warnings))
        said |= {"broker": ["too large"], "actor": ["too large"], "learner": ["odd", "odd", "too old"]}
        wait_until(lambda: any("too old" in warning for warning in pages.snapshot().warnings))
        said["broker"] = ["too large", "too new"]
        wait_until(lambda: "broker 0: refused a message: too new" in pages.snapshot().warnings)
        assert [warning.rpartition(": ")[2] for warning in pages.snapshot().warnings] == ["odd", "too old", "too new"]


@pytest.mark.parametrize("status", ["{", "[]", "[" * 100_000, "{}", '{"health": 5}', '{"health": "127.0.0.1:1"}'])
def test_an_unusable_status_file_is_no_page_and_nor_is_an_impossible_address(tmp_path: Path, status: str) -> None:
    (tmp_path / "s.json").write_text(status)
    assert fetch_announced_page(tmp_path / "s.json", remote=True) is None
    assert fetch_announced_page(tmp_path / "missing.json", remote=True) is None
    for address in ("a\0b:80", "..:80", f"{'x' * 70}:80", "127.0.0.1:70000", f"h:{'9' * 5000}"):
        assert fetch_page(address, 0.1) is None


HERE = socket.gethostname()


@pytest.mark.parametrize(
    ("health", "host", "found", "alone"),
    [
        ("[::]:8080", "node9", ("node9:8080", "node9"), ("", "node9")),
        ("10.0.0.5:8080", "node9", ("10.0.0.5:8080", "node9"), ("", "node9")),
        ("127.0.0.1:8080", "node9", ("", "node9"), ("", "node9")),
        ("[::1]:8080", HERE, ("[::1]:8080", ""), ("[::1]:8080", "")),
        ("0.0.0.0:8080", None, ("0.0.0.0:8080", ""), ("0.0.0.0:8080", "")),
        ("10.0.0.5:8080", None, ("10.0.0.5:8080", ""), ("", "10.0.0.5")),
        ("localhost.example:8080", None, ("localhost.example:8080", ""), ("", "localhost.example")),
    ],
)
def test_a_file_alone_leads_to_no_page_beyond_this_machine(
    tmp_path: Path, health: str, host: str | None, found: tuple[str, str], alone: tuple[str, str]
) -> None:
    """And with `remote` only to one that can be reached there."""
    (tmp_path / "s.json").write_text(json.dumps({"health": health, **({"host": host} if host else {})}))
    assert read_announcement(tmp_path / "s.json", remote=True) == found
    assert read_announcement(tmp_path / "s.json", remote=False) == alone
