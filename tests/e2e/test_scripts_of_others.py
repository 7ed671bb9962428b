"""Examples learn: scripts that only know gymnasium, ours and stable-baselines3's, and a game that steps itself."""

import os
import re
import subprocess
import sys
import sysconfig
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.build.commands import rows_of
from tests.helpers import ROOT, free_port, killed_at_last, python, wait_for_end, wait_until

pytestmark = pytest.mark.timeout(600)

EXAMPLES = ROOT / "docs/examples"
SB3 = Path.home() / ".cache/zerobeast-peers/sb3/bin/python"  #: where `beast bench peers` installs it
#: runs a script with the packages of this environment after those of its own
WITH_OURS = (
    "import runpy, sys; del sys.argv[0]; sys.path.append(sys.argv.pop(0)); "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
COMMANDS = {
    "ppo.py": ((EXAMPLES / "ppo.py",), {}),
    "sb3": (("-c", WITH_OURS, sysconfig.get_paths()["purelib"], EXAMPLES / "sb3_vec_env.py"), {"interpreter": SB3}),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", COMMANDS)
def test_a_script_learns_cartpole_on_two_env_servers(tmp_path: Path, name: str) -> None:
    if name == "sb3" and not SB3.exists():
        pytest.skip("stable-baselines3 is not installed: `beast bench peers` does it")
    endpoints = [f"ipc://{tmp_path}/{each}" for each in "ab"]
    command, options = COMMANDS[name]
    with ExitStack() as stack:
        for endpoint in endpoints:
            server = ("-m", "zerobeast.services.envserver", "--envserver.endpoint", endpoint)
            stack.enter_context(killed_at_last(python(*server, stdout=None, stderr=None)))
        code, out, error = wait_for_end(python(*command, *endpoints, variables={"OMP_NUM_THREADS": "1"}, **options))
    assert code == 0, error
    assert float(re.findall(r"([\d.]+)\s*$", out)[-1]) > 200, "a random policy reaches 22"


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
