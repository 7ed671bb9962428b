import sys
from collections.abc import Iterator

import gymnasium
import pytest

from zerobeast.common.errors import EnvError
from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.services.envserver.atari import games
from zerobeast.services.envserver.catalogue import make_vector_env
from zerobeast.services.envserver.vector import VectorEnv
from zerobeast.services.envserver.workers import WorkerVectorEnv


def made(env: VectorEnv) -> VectorEnv:
    while not env.collect():
        assert env.inline, "only those of processes have to be waited for"
    return env


def refusal(env_id: str, **settings: object) -> str:
    with pytest.raises(EnvError) as caught:
        made(make_vector_env(EnvConfig.model_validate({"id": env_id, **settings}), 1, 0, EnvServerConfig()))
    return str(caught.value)


@pytest.mark.parametrize("env_id", ["ALE/MsPacman-v5", "MsPacmanNoFrameskip-v4"])
def test_both_kinds_of_atari_ids_mean_the_emulators_vector_environment(env_id: str) -> None:
    env = made(make_vector_env(EnvConfig(id=env_id), 2, 0, EnvServerConfig()))
    assert (env.spec.env_id, env.spec.action.sizes, env.num_envs) == (env_id, (9,), 2)
    env.close()


def test_ids_with_a_vectorised_implementation_use_it() -> None:
    env = made(make_vector_env(EnvConfig(id="CartPole-v1"), 3, 0, EnvServerConfig()))
    assert (env.spec.env_id, env.num_envs, env.processes) == ("CartPole-v1", 3, 0)
    env.close()


@pytest.mark.parametrize(
    ("env_id", "meant"),
    [
        ("ALE/pong-v5", "ALE/Pong-v5"),
        ("ALE/Brekout-v5", "ALE/Breakout-v5"),
        ("ALE/-v5", ""),
        ("SpaceInvaderNoFrameskip-v4", "SpaceInvadersNoFrameskip-v4"),
        ("CartPol-v1", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("CartPole", "did you mean CartPole-v1"),
        ("Acrobot-v7", "Acrobot-v1"),
        ("breakout", "did you mean ALE/Breakout-v5 or BreakoutNoFrameskip-v4 or MinAtar/Breakout-v1"),
        ("minatar/Breakout-v1", "MinAtar/Breakout-v1"),
        ("no such environment", ""),
        ("../../etc/passwd", ""),
    ],
)
def test_an_unknown_id_is_refused_with_what_was_probably_meant(env_id: str, meant: str) -> None:
    sentence = refusal(env_id)
    assert sentence.startswith(f"env.id {env_id!r}")
    assert meant in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("env_id", ["Pong-v4", "Pong-v0", "PongNoFrameskip-v0", "PongDeterministic-v4", "ALE/Pong-v4"])
def test_raw_atari_ids_are_refused_with_the_ids_to_use_instead(env_id: str) -> None:
    games()  # importing the emulator registers the raw ids with gymnasium
    assert "expected ALE/Pong-v5 or PongNoFrameskip-v4" in refusal(env_id)


def test_a_missing_emulator_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    assert "pip install 'zerobeast[envserver]'" in refusal("ALE/Pong-v5")
    env = make_vector_env(EnvConfig(id="CartPole-v1"), 1, 0, EnvServerConfig())
    env.close()


def test_without_gymnasium_the_sentence_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert "pip install 'zerobeast[envserver]'" in refusal("Acrobot-v1")


def test_bad_kwargs_are_refused_with_a_sentence() -> None:
    assert "has no 'mode': --env ale_py:ALE/Pong-v5 takes it" in refusal("ALE/Pong-v5", kwargs={"mode": 1})
    assert "cannot be made" in refusal("ALE/Pong-v5", kwargs={"maxpool": "yes"})
    assert "unexpected keyword" in refusal("CartPole-v1", kwargs={"gravity": 1})


@pytest.fixture
def same_step_id() -> Iterator[str]:
    class SameStep(gymnasium.vector.VectorEnv):
        metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012

        def __init__(self, num_envs: int, **_: object) -> None:
            self.num_envs = num_envs

    gymnasium.register("SameStep-v0", "gymnasium.envs.classic_control:CartPoleEnv", vector_entry_point=SameStep)
    yield "SameStep-v0"
    del gymnasium.registry["SameStep-v0"]


def test_a_vectorised_implementation_with_another_autoreset_is_not_used(same_step_id: str) -> None:
    env = make_vector_env(EnvConfig(id=same_step_id), 1, 0, EnvServerConfig())
    assert isinstance(env, WorkerVectorEnv)
