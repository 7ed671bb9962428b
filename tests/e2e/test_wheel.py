"""The wheel is all that a user needs: beside packages with the names of ours, and one that brings parts of its own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.build.commands import best, rows_of, steps
from tests.e2e.conftest import pip
from tests.helpers import ROOT
from zerobeast.testing import algorithm, backend
from zerobeast_tools.release import archives
from zerobeast_tools.release.building import check_archive
from zerobeast_tools.release.first_page import follow_page
from zerobeast_tools.release.imports import check_imports
from zerobeast_tools.release.tree import copy_sources

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
SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
EXAMPLES = ROOT / "docs" / "examples"
EXAMPLE, ALGORITHM = EXAMPLES / "own_everything", EXAMPLES / "awr"
LOADED = """
import sys, own_everything.algorithm, own_everything.backend, own_everything.network
parts = [module for name, module in sys.modules.items() if name.split(".")[0] in ("own_everything", "zerobeast")]
print(*sys.path, *(part.__file__ for part in parts), sep="\\n")
"""


def run(venv: Path, folder: Path, program: str, *arguments: str) -> str:
    """The output of a program of the virtual environment, without the repository on its path."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [venv / "bin" / program, *arguments]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def train(venv: Path, folder: Path, *flags: str) -> str:
    return run(venv, folder, "beast", "train", "--plain", *flags)


def test_a_wheel_has_one_top_level_package_all_files_of_the_tree_and_declares_its_imports(wheel: Path) -> None:
    found = archives.read_wheel(wheel)
    tops = {file.partition("/")[0] for file in found.files}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"zerobeast"}
    check_archive(ROOT, found)
    assert {"zerobeast/py.typed", "zerobeast/services/actor/service.py"} <= set(found.files)
    assert any(file.endswith("/LICENSE") for file in found.files)
    check_imports(wheel)


def test_an_sdist_has_what_the_wheel_has_and_builds_the_same(wheel: Path, tmp_path: Path) -> None:
    source = copy_sources(ROOT, tmp_path)
    subprocess.run([sys.executable, "-c", SDIST, tmp_path], cwd=source, check=True, capture_output=True, timeout=120)
    (sdist,) = tmp_path.glob("*.tar.gz")
    check_archive(ROOT, archives.read_sdist(sdist))
    pip("wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, sdist)
    (rebuilt,) = tmp_path.glob("*.whl")
    archives.check_same(archives.read_wheel(wheel), archives.read_wheel(rebuilt), "the wheel from the sdist")


@pytest.mark.timeout(900)  # on two busy cores; ten commands load torch
def test_the_first_page_works_in_an_empty_folder(venv: Path, tmp_path: Path) -> None:
    python, *_, doctor = follow_page(venv / "bin", tmp_path, (ROOT / "README.md").read_text())
    assert "done: 1,000/1,000 agent steps" in python
    assert float(python.split()[-1]) > 0, "the mean return of whole episodes"
    assert re.search(r"agent steps/s +[1-9]", doctor)


def test_a_project_with_packages_of_the_same_names_trains_in_an_empty_folder(venv: Path, tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True")
    (tmp_path / "mygame.py").write_text(GAME)
    assert "checkpoint: runs/" in train(venv, tmp_path, "--env", "mygame:Mine-v0", "--total_steps", "2000")


@pytest.fixture(scope="module")
def own(venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment with a package that brings all parts, and one with an algorithm, beside the wheel."""
    sources = [tmp_path_factory.mktemp("own") / example.name for example in (EXAMPLE, ALGORITHM)]
    for example, source in zip((EXAMPLE, ALGORITHM), sources, strict=True):
        shutil.copytree(example, source)  # building writes beside the sources
    pip("--python", venv, "install", "-q", "--no-index", "--no-build-isolation", *sources)
    return venv


def test_the_parts_of_a_package_keep_the_contracts(own: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE / "tests", tmp_path / "own")
    shutil.copytree(ALGORITHM / "tests", tmp_path / "awr")
    out = run(own, tmp_path, "python", "-m", "pytest", "-q", "own", "awr")
    assert int(re.findall(r"(\d+) passed", out)[0]) > len(backend.RULES) + len(algorithm.RULES)


def test_a_package_of_ones_own_learns_continues_and_is_evaluated(own: Path, tmp_path: Path) -> None:
    paths = run(own, tmp_path, "python", "-c", LOADED).splitlines()
    files = [path for path in paths if path.endswith(".py")]
    assert len(files) > 20
    assert all(Path(file).is_relative_to(own) for file in files)
    assert not {str(ROOT), str(ROOT / "src"), str(EXAMPLE)} & set(paths)
    folder = tmp_path / "runs" / "point"
    goal = ("--total_steps", "40000", "--stop_at_return", "0.6", "--learner.log_every_s", "0.5")
    out = train(own, tmp_path, "--config", str(EXAMPLE / "point.yaml"), "--name", "point", *goal)
    assert "observation.present 6 int8: choices, entities" in out
    costs = [float(row["entropy_cost"]) for row in rows_of(folder) if row["entropy_cost"]]
    assert 0.03 >= costs[0] > costs[-1] > 0.01, "its schedule goes from its own value to that of PPO's preset"
    assert best(rows_of(folder)) >= 0.6, "that of a policy that does not learn is near -0.3"
    further = str(steps(folder) + 1000)
    train(own, tmp_path, "--name", "point", "--total_steps", further, "--stop_at_return", "9")
    assert steps(folder) == int(further), "the run folder alone names all parts"
    assert "mean_return" in run(own, tmp_path, "beast", "evaluate", "point", "--episodes", "5", "--json")
