"""What a new user does first, in a folder of their own: the lines of README's first page, shortened, and more."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from zerobeast.common.errors import BeastError

PYTHON = re.compile(r"```python\n(import gymnasium\n.*?)```", re.DOTALL)
SHELL = re.compile(r"## Look at the result\n+```\n(.*?)```", re.DOTALL)
#: numbers of the page, and those with which its lines take seconds
SHORTER = {
    "total_steps=100_000": "total_steps=1_000",
    "episodes=20": "episodes=2",
    "--total_steps 100000": "--total_steps 4000",
    "--evaluate.times 10": "--evaluate.times 1",
}
SWEEP = "seeds: [1, 2]\nsettings: {env: CartPole-v1, algo: ppo, total_steps: 1000}\n"
#: of the page's text, after its lines
MORE = (
    "beast evaluate cart --episodes 2",
    "beast export cart --out exported --to safetensors,onnx",
    "beast sweep sweep.yaml",
    "beast doctor",
)
#: what they make, and how each of these files begins
MADE = {"cart.png": b"\x89PNG", "cart.gif": b"GIF89a", "exported/README.md": b"---", "runs/sweep/sweep.jsonl": b"{"}


def python_lines(readme: str) -> str:
    """The lines of Python on README's first page, shortened. Raises BeastError if the page has none."""
    return _shorten(_block(PYTHON, readme, "lines of Python"), 2)


def list_commands(readme: str) -> Iterator[list[str]]:
    """Words of each command. Raises BeastError if the page has none."""
    yield ["python", "-c", python_lines(readme)]
    for line in (*_shorten(_block(SHELL, readme, "commands"), 2).splitlines(), *MORE):
        yield shlex.split(line)


def follow_page(programs: Path, folder: Path, readme: str) -> list[str]:
    """Run all commands one after another; returns what each has written.

    Args:
      programs: the folder `bin` of the environment.
      folder: an empty one, to run them in.
      readme: the text of the page.

    Raises:
      BeastError: a command failed, or has not made its file.
    """
    (folder / "sweep.yaml").write_text(SWEEP)
    said = [run_program(programs / program, words, folder) for program, *words in list_commands(readme)]
    for name, begins in MADE.items():
        if not (file := folder / name).is_file() or not file.read_bytes().startswith(begins):
            raise BeastError(f"README.md: its lines make no {name}, expected a file that begins with {begins!r}")
    return said


def run_program(program: Path, arguments: list[str], folder: Path, variables: Mapping[str, str] | None = None) -> str:
    """The output of a program, without a repository on its path.

    Raises:
      BeastError: it failed: how it was called, and the last lines of what it said.
    """
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    environ |= variables or {}
    done = subprocess.run([program, *arguments], cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-20:]
        raise BeastError("\n".join([f"{program.name} {shlex.join(arguments)} failed:", *last]))
    return done.stdout


def _block(pattern: re.Pattern[str], readme: str, what: str) -> str:
    if not (found := pattern.search(readme)):
        raise BeastError(f"README.md: there are no {what}, expected those of the first page")
    return found[1]


def _shorten(text: str, changes: int) -> str:
    """The text with smaller numbers. Raises BeastError unless it has this many of SHORTER's."""
    known = [long for long in SHORTER if long in text]
    if len(known) != changes:
        raise BeastError(f"README.md: found {known} of {[*SHORTER]}, expected {changes} of them in a block")
    for long in known:
        text = text.replace(long, SHORTER[long])
    return text
