"""A package outside the repository brings an algorithm, a network and environments, which the wheel trains."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.build.commands import best, rows_of, steps
from tests.e2e.compose_project import BASE, FUSED, Project, needs_docker
from tests.e2e.conftest import pip
from tests.helpers import ROOT, finished, python
from zerobeast.testing import algorithm, backend

pytestmark = pytest.mark.timeout(300)

EXAMPLES = ROOT / "docs" / "examples"
EXAMPLE, ALGORITHM = EXAMPLES / "own_everything", EXAMPLES / "awr"
LOADED = """
import sys, own_everything.algorithm, own_everything.backend, own_everything.network
parts = [module for name, module in sys.modules.items() if name.split(".")[0] in ("own_everything", "zerobeast")]
print(*sys.path, *(part.__file__ for part in parts), sep="\\n")
"""


@pytest.fixture(scope="module")
def own(venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the package, and another with an algorithm, beside the wheel."""
    sources = [tmp_path_factory.mktemp("own") / example.name for example in (EXAMPLE, ALGORITHM)]
    for example, source in zip((EXAMPLE, ALGORITHM), sources, strict=True):
        shutil.copytree(example, source)  # building writes beside the sources
    pip("--python", venv, "install", "-q", "--no-index", "--no-build-isolation", *sources)
    return venv / "bin" / "python"


def started(own: Path, folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return python(*arguments, interpreter=own, variables={"PYTHONPATH": ""}, cwd=folder)


def beast(own: Path, folder: Path, *arguments: str) -> str:
    code, out, error = finished(started(own, folder, "-m", "zerobeast", *arguments))
    assert code == 0, (out + error)[-3000:]
    return out


def train(*flags: str) -> tuple[str, ...]:
    return ("train", "--plain", "--config", str(EXAMPLE / "point.yaml"), *flags)


def test_nothing_of_the_repository_is_used(own: Path, tmp_path: Path) -> None:
    code, out, error = finished(started(own, tmp_path, "-c", LOADED))
    assert code == 0, error
    paths = out.splitlines()
    files = [path for path in paths if path.endswith(".py")]
    assert len(files) > 20
    assert all(Path(file).is_relative_to(own.parents[1]) for file in files)
    assert not {str(ROOT), str(ROOT / "src"), str(EXAMPLE)} & set(paths)


def test_its_parts_keep_the_contracts(own: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE / "tests", tmp_path / "own")
    shutil.copytree(ALGORITHM / "tests", tmp_path / "awr")
    code, out, error = finished(started(own, tmp_path, "-m", "pytest", "-q", "own", "awr"))
    assert code == 0, (out + error)[-3000:]
    assert int(re.findall(r"(\d+) passed", out)[0]) > len(backend.RULES) + len(algorithm.RULES)


def test_it_learns_continues_and_is_evaluated(own: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "point"
    goal = ("--total_steps", "40000", "--stop_at_return", "0.6", "--learner.log_every_s", "0.5")
    out = beast(own, tmp_path, *train("--name", "point", *goal))
    assert "observation.present 6 int8: choices, entities" in out
    costs = [float(row["entropy_cost"]) for row in rows_of(run) if row["entropy_cost"]]
    assert 0.03 >= costs[0] > costs[-1] > 0.01, "its schedule goes from its own value to that of PPO's preset"
    assert best(rows_of(run)) >= 0.6, "that of a policy that does not learn is near -0.3"
    further = str(steps(run) + 1000)
    beast(own, tmp_path, "train", "--plain", "--name", "point", "--total_steps", further, "--stop_at_return", "9")
    assert steps(run) == int(further), "the run folder alone names all parts"
    assert "mean_return" in beast(own, tmp_path, "evaluate", "point", "--episodes", "5", "--json")


@needs_docker
def test_it_trains_in_images_made_from_ours(images: None) -> None:
    files = [BASE, FUSED, str(EXAMPLE / "compose.yml")]
    name = f"zerobeast-own-{os.getpid()}"
    project = Project(name, {"BEAST_NAME": "point", "BEAST_TOTAL_STEPS": "2048"}, files)
    try:
        project.compose("build")
        project.compose("up", "--no-build", "--exit-code-from", "learner")
        assert "all 2048 agent steps are done" in project.compose("logs", "--no-color", "learner").stdout
    finally:
        project.down()
