"""`beast health --compose`, with a `docker` that prints what the real one prints."""

import json
import os
import threading
from pathlib import Path

import pytest

from zerobeast.cli.health import main
from zerobeast.common.health.figures import ServiceView
from zerobeast.discovery.containers import gather

DOCKER = """#!/bin/sh
case "$1 $2" in
  "compose ps") cat "$ANSWERS/ps" ;;
  "logs --tail") cat "$ANSWERS/log" ;;
  *) echo "error: container is not running" >&2; exit 1 ;;
esac
"""


@pytest.mark.parametrize(
    ("last", "code", "said"),
    [
        ("all 300 agent steps are done", 0, "finished: the run has reached its last step"),
        ("ended by SIGTERM", 1, "not training: no learner and no broker and no envserver and no actor answers"),
    ],
)
def test_a_project_whose_learner_has_ended_is_finished_if_all_steps_are_done(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    last: str,
    code: int,
    said: str,
) -> None:
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("ANSWERS", str(tmp_path))
    entries = [
        {"Service": role, "Name": f"zerobeast-{role}-1", "State": state, "ExitCode": 0}
        for role, state in {
            "learner": "exited",
            "broker": "running",
            "envserver": "running",
            "actor": "running",
        }.items()
    ]
    (tmp_path / "ps").write_text("\n".join(map(json.dumps, entries)))
    (tmp_path / "log").write_text(f"12:00:00.000 learner I {last}\n")
    assert min(main(["--compose"]), 1) == code
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == said
    assert "ended  " in out
    assert last in out


def test_places_are_asked_side_by_side() -> None:
    asked, most = threading.Barrier(4, timeout=30), 4

    def look(place: str) -> list[ServiceView]:
        asked.wait()
        return [ServiceView(place, "actor")]

    assert [view.name for view in gather(look, "abcdefgh", most)] == list("abcdefgh")
