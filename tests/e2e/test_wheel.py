"""The wheel is all that a user needs, and gets on with packages of theirs that have the same names as ours."""

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

NAMES = ("common", "rl", "services", "deploy", "tests", "tools")
GAME = f"""
import os, sys
import {", ".join(NAMES)}
from gymnasium import register
from gymnasium.envs.classic_control import CartPoleEnv

for package in ({", ".join(NAMES)}):
    assert package.MINE, "a package of the product has this name"
files = [os.path.realpath(m.__file__) for m in list(sys.modules.values()) if getattr(m, "__file__", None)]
ours = [file for file in files if "/zerobeast/" in file and not file.endswith("__main__.py")]
assert ours and len(ours) == len(set(ours)), "a module is loaded under two names"
register("Mine-v0", entry_point=CartPoleEnv, max_episode_steps=50)
"""


def beast_train(venv: Path, folder: Path, env: str) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    flags = ["--env", env, "--total_steps", "2000", "--learner.device", "cpu", "--broker.device", "cpu", "--plain"]
    done = subprocess.run(
        [venv / "bin" / "beast", "train", *flags], cwd=folder, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def test_a_wheel_has_one_top_level_package_and_all_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = archive.namelist()
    tops = {file.partition("/")[0] for file in files}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"zerobeast"}
    there = {
        *("zerobeast/py.typed", "zerobeast/rl/algos/ppo/presets/atari.yaml", "zerobeast/tools/bench/pingpong.c"),
        *("zerobeast/services/actor/service.py", "zerobeast/common/config/presets/classic.yaml"),
        "zerobeast/cli/slurm.sh",
    }
    assert there <= set(files)
    assert any(file.endswith("/LICENSE") for file in files)


def test_it_trains_from_an_empty_folder(venv: Path, tmp_path: Path) -> None:
    assert "checkpoint: runs/" in beast_train(venv, tmp_path, "CartPole-v1")


def test_a_project_with_packages_of_the_same_names_trains(venv: Path, tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True")
    (tmp_path / "mygame.py").write_text(GAME)
    assert "checkpoint: runs/" in beast_train(venv, tmp_path, "mygame:Mine-v0")
