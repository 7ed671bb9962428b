"""One policy learns tasks that pay very differently, through all four services."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
ENVS = "tests.e2e.task_envs"


def beast(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zerobeast", *argv]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=280)


def test_a_task_that_pays_ten_thousand_times_as_much_does_not_drown_the_other(tmp_path: Path) -> None:
    """A batch holds rows of both. With one shared value and unit the cheap one stays near chance."""
    run = ("--root", str(tmp_path), "--env", f"{ENVS}:Cheap-v0,{ENVS}:Dear-v0")
    flags = "--plain --name both --total_steps 40000 --learner.batch_size 16 --impala.popart true"
    flags += " --impala.reward_scale 1 --impala.discount 0.5"
    done = beast("train", *run, *flags.split())
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    done = beast("evaluate", "both", *run, "--episodes", "30", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    cheap, dear = map(json.loads, done.stdout.splitlines())
    assert [cheap["env"], dear["env"]] == [f"{ENVS}:Cheap-v0", f"{ENVS}:Dear-v0"]
    assert cheap["mean_return"] >= 6.0, "the most is 8, chance 2"
    assert dear["mean_return"] >= 60_000


def test_environments_that_are_not_alike_end_the_run_with_a_sentence(tmp_path: Path) -> None:
    done = beast("train", "--plain", "--root", str(tmp_path), "--env", f"{ENVS}:Cheap-v0,{ENVS}:Wide-v0")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert all(part in done.stderr for part in (f"{ENVS}:Cheap-v0", f"{ENVS}:Wide-v0", "obs_shape", "[8]", "[12]"))
