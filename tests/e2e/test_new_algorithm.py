"""Algorithms of other packages, those of docs/examples, train as our own do; so does a service, and a launcher."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.build.commands import pid_of, rows_of, steps
from tests.helpers import ROOT, python, wait_for_end, wait_until
from zerobeast.common.files import evaluations

pytestmark = pytest.mark.timeout(600)


def installed(name: str, folder: Path) -> Path:
    source, target = folder / "source", folder / "packages"
    shutil.copytree(ROOT / "docs" / "examples" / name, source)  # building writes beside the sources
    flags = ("--quiet", "--no-deps", "--no-build-isolation", "--target", target)
    code, out, error = wait_for_end(python("-m", "pip", "install", *flags, source))
    assert code == 0, out + error
    return target


def beast(packages: Path, folder: Path, *flags: str) -> str:
    command = ("-m", "zerobeast", *flags, "--root", folder / "runs")
    code, out, error = wait_for_end(python(*command, variables={"PYTHONPATH": str(packages)}, cwd=folder))
    assert code == 0, (out + error)[-3000:]
    return out


@pytest.mark.parametrize(
    ("name", "own", "value"),
    [
        ("awr", "temperature", "0.5"),
        pytest.param("two_timescale", "critic_learning_rate", "0.002", marks=pytest.mark.nightly),
    ],
)
def test_an_algorithm_of_another_package_trains_as_our_own_do(tmp_path: Path, name: str, own: str, value: str) -> None:
    packages, plain, run = installed(name, tmp_path), ("train", "--plain", "--name", name), tmp_path / "runs" / name
    assert f"--{name}.{own}" in beast(packages, tmp_path, "train", "--help", "all"), "its settings are flags"
    beast(packages, tmp_path, *plain, "--env", "CartPole-v1", "--algo", name, "--total_steps", "10000")
    assert int(rows_of(run)[-1]["updates"]) > 0
    beast(packages, tmp_path, *plain, "--total_steps", "12000")
    assert steps(run) == 12_000, "its checkpoint is continued"
    settings = (run / "config.yaml").read_text()
    assert f"{own}: {value}" in settings, "its preset, if any, was found"
    assert "impala:" not in settings, "sections of other algorithms are not recorded"
    code, out, error = wait_for_end(python("-m", "zerobeast", *plain, "--root", tmp_path / "runs", cwd=tmp_path))
    assert (code, out) == (2, ""), "the package is missing"
    assert f"algo '{name}'" in error


def test_another_service_takes_its_folder_and_a_record(tmp_path: Path) -> None:
    tree, run, source = tmp_path / "tree", tmp_path / "runs" / "x", ROOT / "docs" / "examples" / "onlooker"
    for part in ("zerobeast", "common", "services"):
        shutil.copytree(ROOT / part, tree / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(source, tree / "services" / "onlooker")
    (record,) = re.findall(r"    Role\(.*\n", (source / "README.md").read_text())
    roles = tree / "common" / "process" / "roles.py"
    roles.write_text(roles.read_text().replace(worker := '    Role("worker"', record + worker))
    beast(tree, tmp_path, "train", "--plain", "--name", "x", "--env", "CartPole-v1", "--total_steps", "3000")
    assert "heard of" in (run / "logs" / "onlooker-0.log").read_text()
    around = {"variables": {"PYTHONPATH": str(tree)}, "cwd": tmp_path}
    made = wait_for_end(python("-m", "zerobeast", "keygen", "keys", **around))
    assert "keys/public/onlooker.key" in made[1]
    assert wait_for_end(python("-m", "zerobeast.services.onlooker", "health", **around))[0] == 2, "none runs here"


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_another_supervisor_runs_what_the_plan_has_and_starts_a_worker_again(tmp_path: Path) -> None:
    run, around = tmp_path / "runs" / "mine", {"variables": {"TMUX_TMPDIR": str(tmp_path)}, "cwd": tmp_path}
    flags = ("--name", "mine", "--root", tmp_path / "runs", "--env", "CartPole-v1", "--algo", "ppo")
    more = ("--total_steps", "10000", "--local.workers", "1", "--evaluate.times", "1", "--learner.log_every_s", "0.2")
    code, out, error = wait_for_end(python(ROOT / "docs/examples/own_launcher.py", *flags, *more, **around))
    assert (code, "tmux -L mine attach" in out) == (0, True), error
    wait_until(lambda: steps(run) > 0, 120)
    os.kill(before := pid_of(run, "actor-0"), signal.SIGKILL)
    wait_until(lambda: pid_of(run, "actor-0") != before, 120)
    tmux = {"env": os.environ | around["variables"], "capture_output": True}
    wait_until(lambda: time.sleep(0.5) or subprocess.run(["tmux", "-L", "mine", "ls"], **tmux).returncode != 0, 300)
    assert (steps(run), len(evaluations.read_evaluations(run))) == (10_000, 1)
