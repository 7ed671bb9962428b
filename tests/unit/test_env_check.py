"""What `beast check` and the start of a run say about an environment."""

import random
import subprocess
import sys
import threading
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
from tests.helpers import running_still, wait_until
from zerobeast.cli.check import main as check
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import EnvConfig, RunConfig
from zerobeast.common.settings.run import LearnerConfig, LocalConfig
from zerobeast.launcher import spaces
from zerobeast.services.envserver import check as look_at
from zerobeast.services.envserver.check import BRIEF, THOROUGH, look

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

    def look(self) -> Any:
        return {"pos": Good.look(self)}

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**given)[0], MASK

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], MASK


class Slow(Good):
    """It takes longer than a short check to reset, prints, and leaves a thread and a process behind."""

    def __init__(self, log: str) -> None:
        self.log = Path(log)
        self.note("made")
        threading.Thread(target=time.sleep, args=(1000,)).start()
        left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        self.log.with_name("log.pid").write_text(str(left.pid))

    def note(self, text: str) -> None:
        sys.stdout.write(text)
        with self.log.open("a") as file:
            file.write(f"{text} ")

    def reset(self, **given: Any) -> Any:
        self.note("reset")
        time.sleep(BRIEF)
        return super().reset(**given)


def checked(name: str, seconds: float = BRIEF, share: float = 0.1, **env: Any) -> list[tuple[str, str]]:
    """What is found in an environment of a class here, or in a flawed one."""
    is_class = name in globals()
    env |= {"id": f"{HOME}:{name if is_class else 'Flawed'}"} | ({} if is_class else {"kwargs": {"fault": name}})
    config = RunConfig(env=EnvConfig(**env), learner=LearnerConfig(max_lost_episodes=share))
    return look(config, config.env.id, seconds)[2]


def odd(name: str, *args: Any, **more: Any) -> list[tuple[str, str]]:
    return [(level, sentence) for level, sentence in checked(name, *args, **more) if level != "ok"]


def test_a_good_environment_is_read_and_timed_and_nothing_else_is_said() -> None:
    read, played = checked("Good", THOROUGH)
    assert read[0] == played[0] == "ok"
    assert "episodes of 10" in played[1]


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("whole", ["int64", "-1 to 1"]),
        ("forgetful", ["two resets"]),
        ("number", ["type int"]),
        ("wide", ["0 to 2e+06"]),
        ("rare", ["RuntimeError: the simulator is gone (test_env_check.py:"]),
    ],
)
def test_what_a_run_accepts_and_is_seldom_meant_is_a_warning(name: str, named: list[str]) -> None:
    warnings = odd(name)
    assert [level for level, _ in warnings] == ["warning"] * len(named)
    assert all(word in text for word, (_, text) in zip(named, warnings, strict=True))


@pytest.mark.parametrize("name", ["sharing", "clinging"])
def test_what_a_run_seeds_too_counts_as_seeded_and_a_close_that_takes_long_as_none(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_at, "CLOSE_S", 0.05)
    assert odd(name) == []


def test_a_mask_that_is_not_used_as_one_is_named_with_the_setting() -> None:
    mask, failed = odd("Masked")
    assert "--env.action_mask action_mask" in mask[1]
    assert "AssertionError" in failed[1]
    assert odd("Masked", THOROUGH, action_mask="action_mask") == []
    ((level, contradicted),) = odd("Masked", action_mask="mask")
    assert level == "error"
    assert contradicted.endswith("pos, action_mask")
    assert {level for level, _ in odd("MaskInInfo", action_mask="action_mask")} <= {"warning"}, "it cannot be judged"


@pytest.mark.parametrize(
    ("name", "why"), [("objectives", "[3]"), ("unbegun", "no level (test_env_check.py:"), ("unseen", "every reset")]
)
def test_what_no_run_can_learn_from_is_an_error(name: str, why: str) -> None:
    ((level, sentence),) = odd(name)
    assert level == "error"
    assert why in sentence


def test_lost_episodes_are_an_error_if_a_run_would_end_by_them_or_if_the_check_is_thorough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def level(name: str, seconds: float = 60.0, share: float = 0.1) -> str:
        ((found, _),) = odd(name, seconds, share)
        return found

    monkeypatch.setattr(look_at, "MOST", 400)
    assert (level("crash"), level("crash", share=1.0), level("rare", share=0.01)) == ("error", "warning", "error")
    assert (level("rare"), level("rare", THOROUGH)) == ("warning", "error")
    monkeypatch.setattr(look_at, "MOST", 100)
    assert level("crash") == "warning"  # of too few


def test_several_agents_are_checked_as_one_is() -> None:
    spec, agents, (*_, (level, sentence)) = look(RunConfig(env=EnvConfig(id=RELAY)), RELAY, BRIEF)
    assert (spec.env_id, agents, level) == (RELAY, 3, "ok")
    assert "episodes of 2" in sentence


def test_the_command_prints_a_line_for_each_finding_and_exits_with_1_for_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert check([f"{HOME}:Flawed", "--env.kwargs", "{fault: objectives}"]) == 1
    ok, error = capsys.readouterr().out.splitlines()
    assert ok.startswith("ok       observation 2 float32")
    assert error.startswith("error    environment ")
    with pytest.raises(ConfigError, match="'Nobody'") as caught:
        check([f"{HOME}:Nobody"])
    assert caught.value.exit_code == 2


def test_python_gets_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("zerobeast.api.check.findings", lambda config: asked.append(config.env) or [("ok", "fine")])
    assert zb.check(Good, env_kwargs={"size": 5}) == [("ok", "fine")]
    assert (asked[0].id.endswith("test_env_check.py:Good") or asked[0].id == f"{HOME}:Good", asked[0].kwargs) == (
        True,
        {"size": 5},
    )


def test_a_run_begins_with_a_check_of_what_this_user_does_not_know_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    answer, asked = [["ok", "fine"], ["warning", "walk: hm"]], list[tuple[str, bool]]()

    def process(_command: str, values: dict[str, Any]) -> Any:
        asked.append((values["env.id"], values["local.check"]))
        return {"findings": answer if values["local.check"] else []}

    monkeypatch.setattr(spaces, "answer_of", process)
    monkeypatch.setattr(spaces, "known", cache(spaces.known.__wrapped__))
    (tmp_path / "walk.py").write_text("class Walk: ...\n")
    walk = f"{tmp_path}/walk.py:Walk"

    def begin(env_id: str, **env: Any) -> list[str]:
        return spaces.first_check(RunConfig(env=EnvConfig(id=env_id, **env)))

    for local in (LocalConfig(placement="serve"), LocalConfig(check=False)):
        assert spaces.first_check(RunConfig(env=EnvConfig(id=walk), local=local)) == []
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


def test_what_an_environment_is_and_what_is_odd_about_it_costs_one_process_and_one_slow_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    log = tmp_path / "log"
    config = RunConfig(env=EnvConfig(id=f"{HOME}:Slow", kwargs={"log": str(log)}))
    spec = spaces.spec_for(config)
    assert spec is not None
    assert spec.obs.shape == (2,)
    assert spaces.first_check(config) == []
    assert spaces.padded(config) == config
    assert log.read_text() == "made reset "
    wait_until(lambda: not running_still(int((tmp_path / "log.pid").read_text())))
