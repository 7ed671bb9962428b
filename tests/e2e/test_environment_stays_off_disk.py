"""What a process's environment variables say is written nowhere, but for those that are settings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
SECRET = "hunter2-correct-horse-battery-staple"


def test_nothing_of_the_environment_is_written_but_settings(tmp_path: Path) -> None:
    runs, elsewhere = tmp_path / "runs", tmp_path / "tmp"
    elsewhere.mkdir()
    environ = os.environ | {
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(elsewhere),
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "DATABASE_URL": f"postgres://user:{SECRET}@host/db",
        "BEAST_SEED": "48611",
    }
    flags = ["--root", str(runs), "--name", "x", "--env", "CartPole-v1", "--total_steps", "2000"]
    command = [sys.executable, "-m", "zerobeast", "train", *flags, "--plain"]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    written = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    kinds = {path.suffix for path in written}
    assert {".yaml", ".pt", ".csv", ".log", ".json"} <= kinds
    assert any("tfevents" in path.name for path in written)
    assert [path for path, content in written.items() if SECRET.encode() in content] == []
    assert SECRET not in done.stdout + done.stderr
    assert b"seed: 48611" in written[Path("runs/x/config.yaml")], "a variable that is a setting is kept as one"
