"""A package outside the repository brings an algorithm, a network and environments, which the wheel trains."""

import json
import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.compose_project import BASE, FUSED, Project, needs_docker
from tests.e2e.conftest import pip
from tests.e2e.test_deterministic import PLACEMENTS, learned, same
from tests.e2e.test_learning import best, rows_of
from tests.helpers import ROOT, finished, killed_at_last, python

pytestmark = pytest.mark.timeout(300)

EXAMPLE = ROOT / "docs" / "examples" / "own_everything"
LOADED = """
import sys, own_everything.algorithm, own_everything.backend, own_everything.network
parts = [module for name, module in sys.modules.items() if name.split(".")[0] in ("own_everything", "zerobeast")]
print(*sys.path, *(part.__file__ for part in parts), sep="\\n")
"""
LEARNED = 1.2  #: a mean return; that of a policy that does not learn is near -0.3


@pytest.fixture(scope="module")
def own(venv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the package beside the wheel."""
    source = tmp_path_factory.mktemp("own") / "source"
    shutil.copytree(EXAMPLE, source)  # building writes beside the sources
    pip("--python", venv, "install", "-q", "--no-index", "--no-build-isolation", source)
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


def test_it_learns_the_same_in_every_placement(own: Path, tmp_path: Path) -> None:
    flags = train("--total_steps", "2500", "--deterministic", "true")
    names = ("apart", "fused", "serial")
    with ExitStack() as stack:
        runs = [started(own, tmp_path, "-m", "zerobeast", *flags, "--name", name, *PLACEMENTS[name]) for name in names]
        for run in runs:
            stack.enter_context(killed_at_last(run))
        for run in runs:
            out, error = run.communicate()
            assert run.returncode == 0, out[-3000:] + error
    first, *others = (learned(tmp_path / "runs", name) for name in names)
    assert any("mix.self_attn" in name for name in first["model"]), "its own network learns"
    assert all(same(first, other) for other in others)


def test_it_learns_continues_and_is_evaluated(own: Path, tmp_path: Path) -> None:
    goal = ("--total_steps", "40000", "--stop_at_return", str(LEARNED), "--learner.log_every_s", "0.5")
    out = beast(own, tmp_path, *train("--name", "point", *goal))
    assert "observation.present 6 int8: choices, entities" in out
    rows = rows_of(tmp_path / "runs", "point")
    costs = [float(row["entropy_cost"]) for row in rows if row["entropy_cost"]]
    assert 0.03 >= costs[0] > costs[-1] > 0.01, "its schedule goes from its own value to that of PPO's preset"
    assert best(rows) > LEARNED
    further = str(int(rows[-1]["agent_steps"]) + 1000)
    beast(own, tmp_path, "train", "--plain", "--name", "point", "--total_steps", further, "--stop_at_return", "9")
    assert rows_of(tmp_path / "runs", "point")[-1]["agent_steps"] == further, "the run folder alone names all parts"
    played = json.loads(beast(own, tmp_path, "evaluate", "point", "--episodes", "100", "--json"))
    assert played["mean_return"] > LEARNED


def test_an_unknown_id_is_refused_with_those_that_are_meant(own: Path, tmp_path: Path) -> None:
    code, _, error = finished(started(own, tmp_path, "-m", "zerobeast", *train("--env", "point/Rech-v0")))
    assert code == 2
    assert "'point/Rech-v0' is unknown; did you mean point/Reach-v0?" in error


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
