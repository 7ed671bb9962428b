"""An algorithm of one's own is a folder and two lines in the registry: docs/examples/awr joins a copy and learns."""

import shutil
from pathlib import Path

import pytest

from tests.e2e.test_learning import best, rows_of
from tests.helpers import ROOT, finished, python

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

EXAMPLE = ROOT / "docs" / "examples" / "awr"
REGISTRY = Path("zerobeast", "common", "algos", "registry.py")
#: line of the registry -> what stands before it
PLACES = {
    "from zerobeast.common.algos.impact": "from zerobeast.common.algos.awr.config import AWRConfig",
    "    impala: ImpalaConfig": "    awr: AWRConfig = AWRConfig()",
}


def copy_with_the_example(folder: Path) -> None:
    algorithms, ignore = folder / REGISTRY.parent, shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "zerobeast", folder / "zerobeast", ignore=ignore)
    shutil.copytree(EXAMPLE, algorithms / EXAMPLE.name, ignore=ignore)
    before = (folder / REGISTRY).read_text()
    after = before
    for place, line in PLACES.items():
        after = after.replace(place, f"{line}\n{place}", 1)
    (folder / REGISTRY).write_text(after)
    assert len(after.splitlines()) == len(before.splitlines()) + 2


def beast_train(source: Path, *flags: str) -> str:
    command = ("-m", "zerobeast", "train", "--plain", "--root", source / "runs", *flags)
    code, out, error = finished(python(*command, variables={"PYTHONPATH": str(source)}, cwd=source))
    assert code == 0, (out + error)[-3000:]
    return out


def test_a_folder_and_two_lines_are_all_that_an_algorithm_needs(tmp_path: Path) -> None:
    copy_with_the_example(tmp_path)
    assert "--awr.temperature" in beast_train(tmp_path, "--help"), "its settings are flags like all others"
    beast_train(tmp_path, "--env", "CartPole-v1", "--algo", "awr", "--total_steps", "80000", "--name", "awr")
    rows = rows_of(tmp_path / "runs", "awr")
    assert best(rows) >= 45, "a policy that does not learn is near 22"
    beast_train(tmp_path, "--name", "awr", "--total_steps", "82000")
    assert rows_of(tmp_path / "runs", "awr")[-1]["agent_steps"] == "82000", "its checkpoint is continued"
    assert "temperature: 0.5" in (tmp_path / "runs" / "awr" / "config.yaml").read_text(), "its preset was found"
