"""Every placement trains to the end, in as many processes as it has services or workers."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.build.commands import alive, done, pids
from tests.helpers import ROOT, killed_at_last, python
from zerobeast.common.process.usage import cores
from zerobeast.services.learner.checkpoint import load_checkpoint

#: tests/e2e/test_scripts_of_others.py has programs for the placement `serve`
PLACEMENTS = (
    "--local.placement serial",
    "--local.placement fused",
    "--local.placement apart --actor.env_groups 2 --actor.collect_ahead false",
)
SMALL = ("--env", "CartPole-v1", "--net.hidden_size", "16", "--net.core=lstm", "--net.core_width", "8", "--plain")
TORSO = ("--net.torso", f"{ROOT}/tests/build/parts.py:Tokens")
PROCESSES = {"fused": 1 + min(2, int(cores())), "apart": 4}  #: for two env groups
CODE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Stops(CartPoleEnv):
    def step(self, action):
        breakpoint()
        return super().step(action)

gymnasium.register("Stops-v0", Stops, max_episode_steps=50)
"""


@pytest.mark.parametrize("flags", PLACEMENTS)
def test_it_trains(flags: str, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    run = ("--root", tmp_path, "--name", "x", "--total_steps", "3000")
    out = done("train", *run, *SMALL, *TORSO, *flags.split())
    assert "x: trained 3,000 agent steps" in out
    placement = re.search(r"^placement (\w+), because .*$", out, re.MULTILINE)
    assert placement, out
    assert placement[1] in flags
    assert "inproc" not in str(load_checkpoint(folder / "checkpoint.pt")["config"]), "other processes can play it"
    if placement[1] == "serial":
        assert (len(pids(folder)), len({*pids(folder).values()})) == (4, 1)
    else:
        assert len(list((folder / "logs").iterdir())) == PROCESSES[placement[1]]
    assert not alive(folder)


def test_a_breakpoint_in_an_environment_of_a_serial_run_has_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "stops.py").write_text(CODE)
    flags = ("--env", "stops:Stops-v0", "--preset", "classic", "--local.placement", "serial", "--root", tmp_path)
    debugged = python("-m", "zerobeast", "train", *flags, stdin=subprocess.PIPE, cwd=tmp_path)
    with killed_at_last(debugged):
        out, _ = debugged.communicate("p self.steps_beyond_terminated\nwhere\nimport os; os._exit(7)\n")
    assert debugged.returncode == 7
    assert "super().step(action)" in out
    assert "services/envserver/service.py" in out, "the whole way there is in the same process"
