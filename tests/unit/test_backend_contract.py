"""The contract of a backend: it is kept by each that comes with the package and by examples, and notices each fault."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.build.faulty import FAULTS, LEAKED
from tests.helpers import ROOT, bring, entries_of
from zerobeast.services.envserver.backend import GROUP
from zerobeast.testing import backend
from zerobeast.testing.rules import BrokenRule, Rule

pytestmark = pytest.mark.slow
CARTPOLE = "gymnasium.envs:CartPole-v1"  #: as single environments
EXAMPLE = ROOT / "docs" / "examples" / "own_everything"
BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gymnasium": ("CartPole-v1", {}),
    "gymnasium, one by one": ("Pendulum-v1", {"kwargs": {"max_episode_steps": 15}}),
    "atari": ("ALE/Breakout-v5", {"max_episode_frames": 60, "frame_size": 16, "episodic_life": True}),
    "minatar": ("MinAtar/Breakout-v1", {"kwargs": {"sticky_action_prob": 0.0}}),  # a reset leaves the action to repeat
    "minigrid": ("MiniGrid-Empty-5x5-v0", {"kwargs": {"max_steps": 12}}),
    "pettingzoo": ("pettingzoo/classic/connect_four_v3", {"agents": 2}),
    "envpool": ("envpool/CartPole-v1", {}),
    "mix": (f"zipf({CARTPOLE},gymnasium.envs:Acrobot-v1;1)", {"kwargs": {"max_episode_steps": 15}}),
    "zipf": ("zipf/Gridworld-small", {}),
    "reference": (CARTPOLE, {"kwargs": {"max_episode_steps": 12}}),
    "example": ("point/Reach-v0", {"steps": 10}),
}


@pytest.fixture(scope="module", autouse=True)
def _brought(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("packages")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.syspath_prepend(EXAMPLE)
        with bring(
            folder, GROUP, {"own-1.0": entries_of(EXAMPLE), "faulty-1.0": "faulty/* = tests.build.faulty:BACKEND"}
        ):
            yield


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("rule", backend.RULES, ids=str)
def test_every_backend_keeps_the_contract(rule: Rule, name: str) -> None:
    env_id, settings = BACKENDS[name]
    rule(env_id, **settings)


@pytest.fixture
def _ended() -> Iterator[None]:
    """End what a fault has left behind."""
    yield
    for process in LEAKED:
        process.kill()
        process.wait()
    LEAKED.clear()


@pytest.mark.usefixtures("_ended")
@pytest.mark.parametrize("fault", [fault for fault, broken in FAULTS.items() if broken])
def test_a_fault_breaks_the_rule_that_forbids_it(fault: str) -> None:
    (rule,) = (rule for rule in backend.RULES if str(rule) == FAULTS[fault])
    with pytest.raises(BrokenRule, match=f"^{rule}: "):
        rule(f"faulty/{fault}")
    rule("faulty/none")


def test_there_is_a_fault_for_each_rule() -> None:
    assert {str(rule) for rule in backend.RULES} == {*FAULTS.values()} - {""}
