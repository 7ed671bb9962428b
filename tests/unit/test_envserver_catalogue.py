"""Which vector environment an id gets, and ids that are refused with what was probably meant."""

import sys
from typing import Any

import gymnasium
import pytest

from zerobeast.common.errors import EnvError
from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.services.envserver.atari import games
from zerobeast.services.envserver.catalogue import make_vector_env
from zerobeast.services.envserver.workers import WorkerVectorEnv

SERVER = EnvServerConfig(in_process=True)


def refusal(env_id: str, **settings: Any) -> str:
    with pytest.raises(EnvError) as caught:
        make_vector_env(EnvConfig.model_validate({"id": env_id, **settings}), 1, 0, SERVER).collect()
    assert str(caught.value).startswith("env.")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "ALE/Pong-v5", "PongNoFrameskip-v4", "zipf/Gridworld-small"])
def test_ids_with_a_vectorised_implementation_use_it(env_id: str) -> None:
    assert make_vector_env(EnvConfig(id=env_id), 3, 0, EnvServerConfig()).processes == 0


def test_a_vectorised_implementation_with_another_autoreset_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class SameStep(gymnasium.vector.VectorEnv):
        metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012

    cartpole = "gymnasium.envs.classic_control:CartPoleEnv"
    spec = gymnasium.envs.registration.EnvSpec("SameStep-v0", cartpole, vector_entry_point=SameStep)
    monkeypatch.setitem(gymnasium.registry, "SameStep-v0", spec)
    assert isinstance(make_vector_env(EnvConfig(id="SameStep-v0"), 1, 0, EnvServerConfig()), WorkerVectorEnv)


@pytest.mark.parametrize(
    ("env_id", "meant"),
    [
        ("ALE/Brekout-v5", "ALE/Breakout-v5"),
        ("ALE/-v5", ""),
        ("SpaceInvaderNoFrameskip-v4", "SpaceInvadersNoFrameskip-v4"),
        ("CartPole", "CartPole-v1"),
        ("Acrobot-v7", "Acrobot-v1"),
        ("breakout", "ALE/Breakout-v5 or BreakoutNoFrameskip-v4 or MinAtar/Breakout-v1"),
        ("MinAtar/Brekout-v1", "`Breakout`"),
        ("pettingzoo/classic/conect_four_v3", "pettingzoo/classic/connect_four_v3"),
        ("zipf/Gridworld-smal", "zipf/Gridworld-small"),
        ("envpool/CartPol-v1", "envpool/CartPole-v1"),
        ("envpool/gfootball/academy_empty_goal-v1", "gfootball/academy_empty_goal"),
        ("football/academy_emty_goal", "football/academy_empty_goal"),
        ("football/golf", ""),
        ("../../etc/passwd", ""),
        *((f"{raw}", "ALE/Pong-v5 or PongNoFrameskip-v4") for raw in ("Pong-v4", "PongNoFrameskip-v0", "ALE/Pong-v4")),
    ],
)
def test_an_unknown_id_is_refused_with_what_was_probably_meant(env_id: str, meant: str) -> None:
    games()  # importing the emulator registers raw ids of Atari games with gymnasium
    sentence = refusal(env_id)
    assert sentence.startswith(f"env.id {env_id!r}")
    assert meant in sentence


def test_a_missing_package_is_named_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(**_: Any) -> gymnasium.Env[Any, Any]:
        raise gymnasium.error.DependencyNotInstalled('Thing is not installed, run `pip install "gymnasium[thing]"`')

    monkeypatch.setitem(gymnasium.registry, "Thing-v0", gymnasium.envs.registration.EnvSpec("Thing-v0", make))
    assert 'pip install "gymnasium[thing]"' in refusal("Thing-v0")
    for name in [name for name in sys.modules if name.partition(".")[0] == "minatar"]:
        monkeypatch.delitem(sys.modules, name)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [])
        assert "zerobeast[minatar]" in refusal("MinAtar/Breakout-v1")
    for package, env_id in (("ale_py", "ALE/Pong-v5"), ("gymnasium", "Acrobot-v1")):
        monkeypatch.setitem(sys.modules, package, None)
        assert "zerobeast[envserver]" in refusal(env_id)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "named"),
    [
        ("ALE/Pong-v5", {"mode": 1}, "ale_py:ALE/Pong-v5"),
        ("ALE/Pong-v5", {"maxpool": "yes"}, "maxpool"),
        ("CartPole-v1", {"gravity": 1}, "gravity"),
        ("zipf/Gridworld", {"maps": 3}, "exponent"),
        ("zipf/Gridworld", {"exponent": -1}, "-1"),
        ("zipf/Gridworld", {"exponent": "two"}, "'two'"),
    ],
)
def test_arguments_of_no_use_are_refused(env_id: str, kwargs: dict[str, Any], named: str) -> None:
    assert named in refusal(env_id, kwargs=kwargs)
