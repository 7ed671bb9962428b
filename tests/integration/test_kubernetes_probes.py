"""What the probes of deploy/kubernetes ask is what a service answers, and it is ready before any peer is there."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import free_port, wait_until
from tests.unit.kubernetes.test_pods import DRAIN_S, PATHS

pytestmark = pytest.mark.integration


def test_a_service_answers_its_probes_without_peers_and_ends_in_time(tmp_path: Path) -> None:
    status = tmp_path / "status.json"
    flags = [f"--{role}.endpoint=tcp://127.0.0.1:{free_port()}" for role in ("envserver", "broker", "learner")]
    actor = subprocess.Popen([sys.executable, "-m", "zerobeast.services.actor", "--status_file", str(status), *flags])
    try:
        wait_until(status.exists)
        address = json.loads(status.read_text())["health"]
        for path in PATHS.values():
            wait_until(lambda path=path: _status(address, path) == 200)
        assert _status(address, "/health") == 404
        actor.terminate()
        assert actor.wait(timeout=DRAIN_S) == 0
    finally:
        actor.kill()
        actor.wait()


def _status(address: str, path: str) -> int:
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()
