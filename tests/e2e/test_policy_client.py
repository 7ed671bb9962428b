"""The examples of games that step themselves train a run, with a real broker and a real learner that get killed."""

import csv
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.helpers import ROOT, free_port, killed_at_last, node, python, wait_until

pytestmark = pytest.mark.timeout(600)

EXAMPLES = ROOT / "docs/examples"
LINE = re.compile(r"\d+ games, mean return (-?\d\.\d+)")
GOOD = 0.6  #: mean return; the best is 1, random moves get about -0.6


class Run:
    """A broker and a learner as processes."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.places = {role: f"tcp://127.0.0.1:{free_port()}" for role in ("broker", "learner")}
        self.folder, self._stack = folder, stack
        self.processes: dict[str, subprocess.Popen[str]] = {}
        for role in self.places:
            self.start(role)

    def start(self, role: str) -> None:
        flags = ["--env.id", "Catch-v0", "--algo", "ppo", "--name", "catch", "--root", str(self.folder)]
        flags += [text for each, place in self.places.items() for text in (f"--{each}.endpoint", place)]
        flags += ["--learner.log_every_s", "0.5", "--learner.checkpoint_every_s", "1"]
        with (self.folder / f"{role}.log").open("a") as log:
            service = python("-m", f"zerobeast.services.{role}", *flags, stdout=log, stderr=log)
        self._stack.enter_context(killed_at_last(service))
        self.processes[role] = service

    def kill(self, role: str) -> None:
        self.processes[role].kill()
        self.processes[role].wait()

    def newest(self, column: str) -> int:
        """The newest value of a column of metrics.csv, 0 if there is none."""
        path = self.folder / "catch" / "metrics.csv"
        rows = list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []
        return int(rows[-1][column] or 0) if rows else 0


class Game:
    """A process that plays and prints how well."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def plays(self, at_least: float) -> None:
        """Wait until it prints a mean return of `at_least`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if (said := LINE.match(line)) and float(said[1]) >= at_least:
                return
        raise AssertionError(f"it has ended: {self.process.wait()}")


@contextmanager
def playing(run: Run, *command: str | Path) -> Iterator[Game]:
    """Run an example, whose stderr goes to stdout too."""
    arguments = [*command, run.places["broker"], run.places["learner"], "600"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(arguments, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with killed_at_last(process):
        yield Game(process)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with ExitStack() as stack:
        yield Run(tmp_path_factory.mktemp("run"), stack)


def test_the_example_in_python_learns_and_outlives_both_servers(run: Run) -> None:
    with playing(run, sys.executable, EXAMPLES / "catch_game.py") as game:
        game.plays(at_least=GOOD)
        assert run.newest("refused") == 0
        for role in ("broker", "learner"):
            run.kill(role)
            before = run.newest("agent_steps")
            run.start(role)
            game.plays(at_least=GOOD)
            wait_until(lambda before=before: run.newest("agent_steps") > before, timeout_s=120)


def test_the_example_in_javascript_learns_too(run: Run) -> None:
    """The quick start says how to install its packages."""
    with playing(run, node(), EXAMPLES / "catch_game.js") as game:
        refused, before = run.newest("refused"), run.newest("agent_steps")
        game.plays(at_least=GOOD)
        wait_until(lambda: run.newest("agent_steps") > before, timeout_s=120)
        assert run.newest("refused") == refused
