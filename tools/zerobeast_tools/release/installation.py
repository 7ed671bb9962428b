"""What only an installed wheel shows: its packages fit each other, the first page works, its parts keep contracts."""

import sys
import venv
from pathlib import Path

from zerobeast.common.errors import BeastError
from zerobeast_tools.release.building import run_module
from zerobeast_tools.release.first_page import follow_page, run_program

EXTRA = "start"
DYNAMIC = 'dynamic = ["version"]'
CONTRACTS = """\
import pytest
from zerobeast.testing import algorithm, backend


@pytest.mark.parametrize("rule", algorithm.RULES, ids=str)
def test_algorithm(rule):
    rule("ppo")


@pytest.mark.parametrize("rule", backend.RULES, ids=str)
def test_backend(rule):
    rule("CartPole-v1")
"""


def install(wheel: Path, constraints: Path, place: Path) -> Path:
    """Install a wheel into an empty environment, with EXTRA; returns the folder of its programs.

    Raises:
      BeastError: it cannot be installed, or packages do not fit each other.
    """
    venv.create(place / "venv", with_pip=False)
    pip = ("pip", "--python", str(place / "venv"))
    run_module(*pip, "install", "--quiet", "--constraint", str(constraints), f"{wheel}[{EXTRA}]")
    run_module(*pip, "check")
    return place / "venv" / "bin"


def check_use(programs: Path, readme: str, place: Path) -> None:
    """Follow README's first page in an empty folder. Raises BeastError if a line fails."""
    (folder := place / "use").mkdir()
    follow_page(programs, folder, readme)


def check_contracts(programs: Path, constraints: Path, place: Path) -> None:
    """Run the contracts that the wheel brings for its own algorithm and environment. Raises BeastError if one fails."""
    pip = ("pip", "--python", str(programs.parent))
    run_module(*pip, "install", "--quiet", "--constraint", str(constraints), "pytest")
    (folder := place / "contracts").mkdir()
    (folder / "test_contracts.py").write_text(CONTRACTS)
    run_program(programs / "python", ["-m", "pytest", "-q", "test_contracts.py"], folder)


def write_bill(programs: Path, tree: Path, version: str, file: Path) -> None:
    """Write the bill of materials of an environment, in CycloneDX's format.

    Args:
      programs: the folder `bin` of the environment.
      tree: describes the package itself.
      version: of the package, which pyproject.toml does not tell.
      file: to write.

    Raises:
      BeastError: that failed, or pyproject.toml gives the version in another way.
    """
    described = file.with_suffix(".toml")
    text = (tree / "pyproject.toml").read_text()
    described_text = text.replace(DYNAMIC, f'version = "{version}"')
    if described_text == text:
        raise BeastError(f"pyproject.toml: there is no line {DYNAMIC}, expected one, which the bill needs")
    described.write_text(described_text)
    arguments = ("environment", "--pyproject", str(described), "--mc-type", "library", "--output-reproducible")
    program = Path(sys.executable).with_name("cyclonedx-py")
    run_program(program, [*arguments, "-o", str(file), str(programs / "python")], file.parent)
    described.unlink()
