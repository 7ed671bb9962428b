"""The example of a game that steps itself trains a run, with a real broker and a real learner."""

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.build.commands import rows_of
from tests.helpers import ROOT, free_port, killed_at_last, python, wait_until

pytestmark = pytest.mark.timeout(600)

LINE = re.compile(r"\d+ games, mean return (-?\d\.\d+)")
GOOD = 0.6  #: mean return; the best is 1, random moves get about -0.6


def test_an_example_learns(tmp_path: Path) -> None:
    places = {role: f"tcp://127.0.0.1:{free_port()}" for role in ("broker", "learner")}
    flags = ["--env.id", "Catch-v0", "--algo", "ppo", "--name", "catch", "--root", str(tmp_path)]
    flags += [text for role, place in places.items() for text in (f"--{role}.endpoint", place)]
    with ExitStack() as stack:
        for role in places:
            log = stack.enter_context((tmp_path / f"{role}.log").open("w"))
            service = python("-m", f"zerobeast.services.{role}", *flags, "--learner.log_every_s", "0.5", stderr=log)
            stack.enter_context(killed_at_last(service))
        command = (sys.executable, ROOT / "docs/examples/catch_game.py", *places.values(), "600")
        game = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=-1, stderr=subprocess.STDOUT, text=True
        )
        stack.enter_context(killed_at_last(game))
        assert game.stdout is not None
        assert any((said := LINE.match(line)) and float(said[1]) >= GOOD for line in game.stdout), game.wait()
        last = wait_until(lambda: rows_of(tmp_path / "catch"))[-1]
    assert int(last["agent_steps"]) > 0
    assert int(last["refused"] or 0) == 0
