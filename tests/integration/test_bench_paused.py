"""Services that are stopped in their tracks, when one of them has ended."""

import json
import subprocess
import sys
from pathlib import Path

from tests.helpers import wait_until
from zerobeast.tools.bench.paused import paused


def test_one_that_ended_does_not_keep_the_others_stopped(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    others = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        for index, child in enumerate([others[0], ended, others[1]]):
            (tmp_path / f"{index}.json").write_text(json.dumps({"pid": child.pid}))
        with paused(tmp_path):
            wait_until(lambda: [_state(child.pid) for child in others] == ["T", "T"])
        wait_until(lambda: [_state(child.pid) for child in others] == ["S", "S"])
    finally:
        for child in others:
            child.kill()
            child.wait()


def _state(pid: int) -> str:
    """The state letter of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
