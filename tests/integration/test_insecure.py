"""Services without keys stay on this machine, unless somebody says otherwise in so many words."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import free_port, wait_until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def service(role: str, folder: Path, *flags: str) -> subprocess.Popen[str]:
    """A server of this role, about to listen at every address."""
    command = [sys.executable, "-m", f"zerobeast.services.{role}", "--name", "x", "--root", str(folder)]
    command += [f"--{role}.endpoint", f"tcp://*:{free_port()}", *flags]
    environ = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


@pytest.mark.parametrize("role", ["envserver", "broker", "learner"])
def test_a_server_beyond_loopback_without_keys_ends_with_one_sentence(tmp_path: Path, role: str) -> None:
    with service(role, tmp_path) as process:
        _, error = process.communicate(timeout=120)
    assert process.returncode == 2
    (sentence,) = [line for line in error.splitlines() if line.startswith(f"{role}: ")]
    assert sentence.endswith(
        "would be open to every machine that reaches it: expected --security.keys (`beast keygen` makes them), or "
        "--insecure where the network keeps strangers out"
    )
    assert "Traceback" not in error


def test_a_server_that_is_told_to_be_insecure_starts(tmp_path: Path) -> None:
    status = tmp_path / "status.json"
    with service("envserver", tmp_path, "--insecure", "--status-file", str(status)) as process:
        wait_until(lambda: status.exists() or process.poll() is not None, 120)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert "security.insecure=True (flag)" in error
