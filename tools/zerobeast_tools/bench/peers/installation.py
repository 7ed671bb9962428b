"""A virtual environment for each package of others, made once: their pins contradict one another and ours."""

import shutil
import sys
import tempfile
from pathlib import Path

from zerobeast.common.process.terminal import write
from zerobeast_tools.bench.peers.catalogue import ROM_SOURCE, TORCH, Package
from zerobeast_tools.bench.peers.process import PeerFailed, run_child

INSTALL_LIMIT_S = 3600.0  #: of one pip command; a slow line and a compiler need their time
READY = ".ready"  #: file in the virtual environment that lists what was installed; written last
ROM = Path("ale_py/roms/pong.bin")


def prepare(package: Package, root: Path) -> Path:
    """Make the package's virtual environment if it is missing or made of other versions; returns its interpreter.

    Raises:
      PeerFailed: something could not be installed.
    """
    venv = root / package.name
    python = venv / "bin" / "python"
    ready = venv / READY
    made_of = "\n".join([TORCH, *package.packages, *([ROM_SOURCE] if package.rom else [])]) + "\n"
    if ready.exists() and ready.read_text() == made_of:
        return python
    write(f"{package.name}: installing {package.packages[0]} into {venv}; this takes minutes, once", sys.stderr)
    root.mkdir(parents=True, exist_ok=True)
    log = root / f"{package.name}-install.log"
    try:
        run_child([sys.executable, "-m", "venv", "--clear", str(venv)], log, INSTALL_LIMIT_S)
        _pip(python, log, TORCH)
        _pip(python, log, TORCH, *package.packages)
        if package.rom:
            _copy_rom(python, log, venv)
    except PeerFailed as error:
        raise PeerFailed(f"cannot be installed: {error}") from error
    ready.write_text(made_of)
    return python


def _pip(python: Path, log: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", *arguments]
    run_child(command, log, INSTALL_LIMIT_S, {"PIP_DISABLE_PIP_VERSION_CHECK": "1"})


def _copy_rom(python: Path, log: Path, venv: Path) -> None:
    """Give the peer's old emulator the ROM out of a newer wheel."""
    with tempfile.TemporaryDirectory(prefix="beast-rom-") as folder:
        _pip(python, log, "--no-deps", "--target", folder, ROM_SOURCE)
        for packages in venv.glob("lib/python*/site-packages"):
            shutil.copy(Path(folder) / ROM, packages / ROM)
