"""A new algorithm is a folder and two lines in the registry: those of docs/examples are added to a copy, and learn."""

import shutil
from pathlib import Path

import pytest

from tests.e2e.test_learning import best, rows_of
from tests.helpers import ROOT, finished, python

pytestmark = pytest.mark.timeout(600)

EXAMPLES = {"awr": "AWRConfig", "two_timescale": "TwoTimescaleConfig"}
REGISTRY = Path("zerobeast", "common", "algos", "registry.py")


def copy_with_the_example(name: str, folder: Path) -> None:
    algorithms, ignore = folder / REGISTRY.parent, shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "zerobeast", folder / "zerobeast", ignore=ignore)
    shutil.copytree(ROOT / "docs" / "examples" / name, algorithms / name, ignore=ignore)
    settings = EXAMPLES[name]
    before = after = (folder / REGISTRY).read_text()
    for place, line in {
        "from zerobeast.common.algos.impact": f"from zerobeast.common.algos.{name}.config import {settings}",
        "    impala: ImpalaConfig": f"    {name}: {settings} = {settings}()",
    }.items():
        after = after.replace(place, f"{line}\n{place}", 1)
    (folder / REGISTRY).write_text(after)
    assert len(after.splitlines()) == len(before.splitlines()) + 2


def beast_train(source: Path, *flags: str) -> str:
    command = ("-m", "zerobeast", "train", "--plain", "--root", source / "runs", *flags)
    code, out, error = finished(python(*command, variables={"PYTHONPATH": str(source)}, cwd=source))
    assert code == 0, (out + error)[-3000:]
    return out


@pytest.mark.parametrize(
    ("name", "own", "value"), [("awr", "temperature", "0.5"), ("two_timescale", "critic_learning_rate", "0.002")]
)
def test_a_folder_and_two_lines_are_all_that_an_algorithm_needs(
    tmp_path: Path, name: str, own: str, value: str
) -> None:
    copy_with_the_example(name, tmp_path)
    assert f"--{name}.{own}" in beast_train(tmp_path, "--help"), "its settings are flags like all others"
    beast_train(tmp_path, "--env", "CartPole-v1", "--algo", name, "--total_steps", "80000", "--name", name)
    rows = rows_of(tmp_path / "runs", name)
    assert best(rows) >= 45, "a policy that does not learn is near 22"
    beast_train(tmp_path, "--name", name, "--total_steps", "82000")
    assert rows_of(tmp_path / "runs", name)[-1]["agent_steps"] == "82000", "its checkpoint is continued"
    assert f"{own}: {value}" in (tmp_path / "runs" / name / "config.yaml").read_text(), "its preset, if any, was found"
