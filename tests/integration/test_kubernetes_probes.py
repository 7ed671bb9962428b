"""A service answers the probes of deploy/kubernetes, and is ready before any peer is there."""

import json
from pathlib import Path

from tests.helpers import free_port, killed_at_last, python, wait_until
from tests.integration.test_health import get
from tests.unit.kubernetes.test_pods import DRAIN_S, PATHS


def test_a_service_answers_its_probes_without_peers_and_ends_in_time(tmp_path: Path) -> None:
    status = tmp_path / "status.json"
    flags = [f"--{role}.endpoint=tcp://127.0.0.1:{free_port()}" for role in ("envserver", "broker", "learner")]
    actor = python("-m", "zerobeast.services.actor", "--status_file", status, *flags)
    with killed_at_last(actor):
        wait_until(status.exists)
        address = json.loads(status.read_text())["health"]
        for path in PATHS.values():
            wait_until(lambda path=path: get(address, path)[0] == 200)
        assert get(address, "/health")[0] == 404
        actor.terminate()
        assert actor.wait(timeout=DRAIN_S) == 0
