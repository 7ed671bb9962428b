"""What `beast check` and the start of a run say about an environment."""

import random
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import zerobeast as zb
from tests.build.agents import RELAY
from zerobeast.cli.check import main as check
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.settings import EnvConfig, RunConfig
from zerobeast.common.settings.run import LearnerConfig, LocalConfig
from zerobeast.plan import spaces
from zerobeast.services.envserver import env_check as look_at
from zerobeast.services.envserver.describe import COMMANDS
from zerobeast.services.envserver.env_check import BRIEF_CHECK_S, THOROUGH_CHECK_S, check_env

HOME = "tests.unit.test_env_check"
MASK = {"action_mask": np.array([0, 1, 1], np.int8)}
WITH_MASK = Dict(pos=Box(-1, 1, (2,)), action_mask=Box(0, 1, (3,), np.int8))


class Good(gymnasium.Env):
    """Ten steps, in which nothing is odd."""

    observation_space: Any = Box(-1, 1, (2,))
    action_space: Any = Discrete(3)
    episodes = 0

    def look(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        Good.episodes += 1
        return self.look(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        self.t += 1
        return self.look(), 1.0, self.t == 10, False, {}


class Flawed(Good):
    """With one of these faults: observations, or the rewards and ends of steps."""

    LOOKS: ClassVar[dict[str, Callable[[Any], Any]]] = {
        "whole": lambda _: np.array([10, 20]),
        "forgetful": lambda _: np.random.default_rng().uniform(-1, 1, 2).astype(np.float32),
        "sharing": lambda env: env.observation_space.sample() * np.float32(np.random.uniform() * random.random()),
        "unseen": lambda _: np.array([np.nan, 0], np.float32),
    }

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.look = partial(self.LOOKS.get(fault, Good.look), self)
        if fault == "wide":
            self.action_space = Box(0, 2e6, (1,))

    def reset(self, **given: Any) -> Any:
        if self.fault == "unbegun":
            raise RuntimeError("no level")
        return super().reset(**given)

    def step(self, action: Any) -> Any:
        if self.t == 7 and (self.fault == "crash" or (self.fault == "rare" and Good.episodes % 25 == 3)):
            raise RuntimeError("the simulator is gone")
        obs, reward, terminated, *rest = super().step(action)
        reward = np.zeros(3) if self.fault == "objectives" else reward
        return obs, reward, int(terminated) if self.fault == "number" else terminated, *rest

    def close(self) -> None:
        time.sleep(1000 if self.fault == "clinging" else 0)


class Masked(Good):
    """Its mask is in its observations, and forbids 0."""

    observation_space = WITH_MASK

    def look(self) -> Any:
        return {"pos": super().look()} | MASK

    def step(self, action: Any) -> Any:
        assert action, "0 is illegal"
        return super().step(action)


class MaskInInfo(Masked):
    """Its mask is in its infos, though its space has one."""

    look = Good.look

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        return {"pos": super().reset(**given)[0]}, MASK

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return {"pos": obs}, *rest[:3], MASK


def found_in(name: str, seconds: float = BRIEF_CHECK_S, share: float = 0.1, **env: Any) -> list[tuple[str, str]]:
    """What is odd about an environment of a class here, or about a flawed one."""
    is_class = name in globals()
    env |= {"id": f"{HOME}:{name if is_class else 'Flawed'}"} | ({} if is_class else {"kwargs": {"fault": name}})
    config = RunConfig(env=EnvConfig.model_validate(env), learner=LearnerConfig(max_lost_episodes=share))
    return [finding for finding in check_env(config, config.env.id, seconds)[2] if finding[0] != "ok"]


@pytest.mark.parametrize(("env_id", "agents", "steps"), [(f"{HOME}:Good", 1, 10), (RELAY, 3, 2)])
def test_a_good_environment_is_read_and_timed_and_nothing_else_is_said(env_id: str, agents: int, steps: int) -> None:
    config = RunConfig(env=EnvConfig.model_validate({"id": env_id}))
    spec, found, (read, played) = check_env(config, env_id, THOROUGH_CHECK_S)
    assert (spec.env_id, found, read[0], played[0]) == (env_id, agents, "ok", "ok")
    assert f"episodes of {steps}" in played[1]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("whole", [("warning", "int64"), ("warning", "-1 to 1")]),
        ("forgetful", [("warning", "two resets")]),
        ("number", [("warning", "type int")]),
        ("wide", [("warning", "0 to 2e+06")]),
        ("rare", [("warning", "RuntimeError: the simulator is gone (test_env_check.py:")]),
        ("objectives", [("error", "[3]")]),  # no run can learn from it
        ("unbegun", [("error", "no level (test_env_check.py:")]),
        ("unseen", [("error", "every reset")]),
        ("sharing", []),  # a run seeds what it draws from
        ("clinging", []),  # a close that takes long counts as none
    ],
)
def test_what_is_seldom_meant_is_a_warning_and_what_no_run_can_learn_from_an_error(
    name: str, expected: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_at, "CLOSE_S", 0.05)
    for (level, named), (found, sentence) in zip(expected, found_in(name), strict=True):
        assert found == level
        assert named in sentence


def test_a_mask_that_is_not_used_as_one_is_named_with_the_setting() -> None:
    mask, failed = found_in("Masked")
    assert "--env.action_mask action_mask" in mask[1]
    assert "AssertionError" in failed[1]
    assert found_in("Masked", THOROUGH_CHECK_S, action_mask="action_mask") == []
    ((level, contradicted),) = found_in("Masked", action_mask="mask")
    assert level == "error"
    assert contradicted.endswith("pos, action_mask")
    assert {level for level, _ in found_in("MaskInInfo", action_mask="action_mask")} <= {"warning"}, "cannot be judged"


def test_lost_episodes_are_an_error_if_a_run_would_end_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def level(name: str, seconds: float = 60.0, share: float = 0.1) -> str:
        ((found, _),) = found_in(name, seconds, share)
        return found

    monkeypatch.setattr(look_at, "MAX_STEPS", 400)
    assert (level("crash"), level("crash", share=1.0), level("rare", share=0.01)) == ("error", "warning", "error")
    assert (level("rare"), level("rare", THOROUGH_CHECK_S)) == ("warning", "error")
    monkeypatch.setattr(look_at, "MAX_STEPS", 100)
    assert level("crash") == "warning"  # of too few


def test_the_command_exits_with_1_for_an_error_and_python_gets_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check([f"{HOME}:Flawed", "--env.kwargs", "{fault: objectives}"]) == 1
    ok, error = capsys.readouterr().out.splitlines()
    assert (ok.split()[0], error.split()[0]) == ("ok", "error")
    asked: list[Any] = []
    monkeypatch.setattr("zerobeast.api.check.fetch_findings", lambda run: asked.append(run.env) or [("ok", "fine")])
    assert zb.check(Good, env_kwargs={"size": 5}) == [("ok", "fine")]
    assert (asked[0].id.endswith(":Good"), asked[0].kwargs) == (True, {"size": 5})


def test_a_run_begins_with_a_check_of_what_is_not_known_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    answer, asked = [["ok", "fine"], ["warning", "walk: hm"]], list[tuple[str, bool]]()

    def process(_command: str, values: dict[str, Any]) -> Any:
        asked.append((values["env.id"], values["local.check"]))
        return {"findings": answer if values["local.check"] else []}

    monkeypatch.setattr(spaces, "ask_env_process", process)
    monkeypatch.setattr(spaces, "describe_once", cache(spaces.describe_once.__wrapped__))
    (tmp_path / "walk.py").write_text("class Walk: ...\n")
    walk = f"{tmp_path}/walk.py:Walk"

    def begin(env_id: str, **env: Any) -> list[str]:
        return spaces.check_once(RunConfig(env=EnvConfig.model_validate({"id": env_id, **env})))

    for local in (LocalConfig(placement="serve"), LocalConfig(check=False)):
        assert spaces.check_once(RunConfig(env=EnvConfig(id=walk), local=local)) == []
    warned = ["warning: walk: hm"]
    assert begin(walk) == warned
    assert begin(walk) == begin("CartPole-v1") == begin(walk, pad_actions=7) == []
    assert begin("Blackjack-v1") == begin(f"zipf({walk},c:D;1)") == begin(walk, kwargs={"size": 2}) == warned
    (tmp_path / "walk.py").write_text("class Walk: x = 1\n")
    answer.append(["error", "no"])
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"^no$"):
            begin(walk)
    assert asked[:2] == [(walk, False), (walk, True)]
    assert [env_id for env_id, checks in asked if checks] == [walk, "Blackjack-v1", f"zipf({walk},c:D;1)", walk, walk]


def test_a_description_is_of_all_environments_and_levels_of_a_run_which_have_to_be_alike() -> None:
    def described(env_id: str, levels: str = "", command: str = "describe") -> Any:
        tree = {"env": {"id": env_id}, "local": {"check": False}, "evaluate": {"levels": levels}}
        return COMMANDS[command](RunConfig.model_validate(tree))

    found = described("CartPole-v1,Acrobot-v1", "Acrobot-v1,MountainCar-v0")
    assert (found["env_id"], found["settings"]["pad_obs"], found["settings"]["pad_actions"]) == ("CartPole-v1", (6,), 3)
    for env_id, levels in ((f"CartPole-v1,{RELAY}", ""), ("CartPole-v1", "Acrobot-v1")):
        with pytest.raises(BeastError):
            described(env_id, levels)
    assert all(text.startswith(f"{HOME}:Good: ") for _, text in described(f"{HOME}:Good,CartPole-v1", "", "check")[:1])
