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

EXTRA = "zerobeast[envserver]"


def refusal(env_id: str, **settings: Any) -> str:
    with pytest.raises(EnvError) as caught:
        make_vector_env(EnvConfig.model_validate({"id": env_id, **settings}), 1, 0, EnvServerConfig()).collect()
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
        ("ALE/pong-v5", "ALE/Pong-v5"),
        ("ALE/Brekout-v5", "ALE/Breakout-v5"),
        ("ALE/-v5", ""),
        ("SpaceInvaderNoFrameskip-v4", "SpaceInvadersNoFrameskip-v4"),
        ("CartPol-v1", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("CartPole", "CartPole-v1"),
        ("Acrobot-v7", "Acrobot-v1"),
        ("breakout", "ALE/Breakout-v5 or BreakoutNoFrameskip-v4 or MinAtar/Breakout-v1"),
        ("minatar/Breakout-v1", "MinAtar/Breakout-v1"),
        ("pettingzoo/classic/conect_four_v3", "pettingzoo/classic/connect_four_v3"),
        ("zipf/Gridworld-smal", "zipf/Gridworld-small"),
        ("envpool/CartPol-v1", "envpool/CartPole-v1"),
        ("envpool/gfootball/academy_empty_goal-v1", "gfootball/academy_empty_goal"),
        ("football/academy_emty_goal", "football/academy_empty_goal"),
        ("gfootball/academy_emty_goal", "gfootball/academy_empty_goal"),
        ("football/golf", ""),
        ("gfootball/golf", ""),
        ("no such environment", ""),
        ("../../etc/passwd", ""),
    ],
)
def test_an_unknown_id_is_refused_with_what_was_probably_meant(env_id: str, meant: str) -> None:
    server = EnvServerConfig(in_process=True)
    with pytest.raises(EnvError) as caught:
        make_vector_env(EnvConfig(id=env_id), 1, 0, server).collect()
    assert str(caught.value).startswith(f"env.id {env_id!r}")
    assert meant in str(caught.value)


@pytest.mark.parametrize("env_id", ["Pong-v4", "Pong-v0", "PongNoFrameskip-v0", "PongDeterministic-v4", "ALE/Pong-v4"])
def test_raw_atari_ids_are_refused_with_the_ids_to_use_instead(env_id: str) -> None:
    games()  # importing the emulator registers the raw ids with gymnasium
    assert "ALE/Pong-v5 or PongNoFrameskip-v4" in refusal(env_id)


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    assert EXTRA in refusal("ALE/Pong-v5")
    make_vector_env(EnvConfig(id="CartPole-v1"), 1, 0, EnvServerConfig()).close()
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert EXTRA in refusal("Acrobot-v1")


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
