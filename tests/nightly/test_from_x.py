"""The examples for users of other packages: theirs and ours solve the same task, as their pages say."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT
from zerobeast_tools.bench.peers.catalogue import CLEANRL, RLLIB, SAMPLE_FACTORY, SB3, Package
from zerobeast_tools.bench.peers.installation import prepare
from zerobeast_tools.bench.peers.process import PeerFailed

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(7200)]  # an environment is made first, which takes minutes

EXAMPLES = ROOT / "docs" / "examples"
VENVS = Path.home() / ".cache" / "zerobeast-peers"
SOLVED = 475.0  #: the mean return at which gymnasium calls CartPole-v1 solved; the best is 500
PACKAGES = {"sb3": SB3, "cleanrl": CLEANRL, "rllib": RLLIB, "sample_factory": SAMPLE_FACTORY}
CLEANRL_URL = "https://github.com/vwxyzjn/cleanrl"


def train(folder: Path, python: str | Path, script: Path, *arguments: str | Path, **variables: str) -> float:
    """Run a script in this folder; returns the mean return that it ends with."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    command = [str(python), str(script), *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    found = re.findall(r"^mean greedy return ([\d.]+)", done.stdout, re.MULTILINE)
    assert found, done.stderr[-2000:]
    return float(found[-1])


def script_of_cleanrl(folder: Path) -> Path:
    """CleanRL's own script, from a checkout that CLEANRL names or from a new one."""
    checkout = Path(os.environ.get("CLEANRL", folder / "cleanrl"))
    if not checkout.exists():
        clone = ["git", "clone", "--quiet", "--depth", "1", CLEANRL_URL, str(checkout)]
        if subprocess.run(clone, capture_output=True, check=False).returncode:
            pytest.skip("CleanRL cannot be cloned, and CLEANRL names no checkout")
    return checkout / "cleanrl" / "ppo.py"


def interpreter_of(package: Package) -> Path:
    """The interpreter of a package's virtual environment, which is made if need be."""
    try:
        return prepare(package, VENVS)
    except PeerFailed as error:
        pytest.skip(f"{package.name} {error}")


@pytest.mark.parametrize("name", PACKAGES)
def test_their_script_solves_the_task(tmp_path: Path, name: str) -> None:
    package = PACKAGES[name]
    arguments = [script_of_cleanrl(tmp_path)] if package is CLEANRL else []
    script = EXAMPLES / f"from_{name}" / f"train_with_{name}.py"
    assert train(tmp_path, interpreter_of(package), script, *arguments, **package.environ) >= SOLVED


@pytest.mark.parametrize("name", PACKAGES)
def test_our_script_solves_the_task_with_the_same_settings(tmp_path: Path, name: str) -> None:
    script = shutil.copy(EXAMPLES / f"from_{name}" / "train_with_zerobeast.py", tmp_path)
    assert train(tmp_path, sys.executable, Path(script), PYTHONPATH=str(ROOT / "src")) >= SOLVED
