"""An algorithm can come from another package: those of docs/examples are installed beside this one, and train."""

import shutil
from pathlib import Path

import pytest

from tests.build.commands import rows_of, steps
from tests.helpers import ROOT, finished, python

pytestmark = pytest.mark.timeout(600)


def installed(name: str, folder: Path) -> Path:
    source, target = folder / "source", folder / "packages"
    shutil.copytree(ROOT / "docs" / "examples" / name, source)  # building writes beside the sources
    flags = ("--quiet", "--no-deps", "--no-build-isolation", "--target", target)
    code, out, error = finished(python("-m", "pip", "install", *flags, source))
    assert code == 0, out + error
    return target


def beast(packages: Path, folder: Path, *flags: str) -> str:
    command = ("-m", "zerobeast", *flags, "--root", folder / "runs")
    code, out, error = finished(python(*command, variables={"PYTHONPATH": str(packages)}, cwd=folder))
    assert code == 0, (out + error)[-3000:]
    return out


@pytest.mark.parametrize(
    ("name", "own", "value"), [("awr", "temperature", "0.5"), ("two_timescale", "critic_learning_rate", "0.002")]
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
    code, out, error = finished(python("-m", "zerobeast", *plain, "--root", tmp_path / "runs", cwd=tmp_path))
    assert (code, out) == (2, ""), "the package is missing"
    assert f"algo '{name}'" in error
