"""What `beast check` and the start of a run say about an environment."""

import random
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import zerobeast as zb
from tests.helpers import running_still, wait_until
from zerobeast.cli.check import main as check
from zerobeast.common.errors import ConfigError, EnvError
from zerobeast.common.settings import EnvConfig, RunConfig
from zerobeast.common.settings.run import LearnerConfig, LocalConfig
from zerobeast.launcher import spaces
from zerobeast.services.envserver import check as look_at
from zerobeast.services.envserver.check import BRIEF, THOROUGH, look

HOME = "tests.unit.test_env_check"


class Good(gymnasium.Env):
    """Ten steps, in which nothing is odd."""

    observation_space: Any = Box(-1, 1, (2,))
    action_space: Any = Discrete(3)

    def look(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.look(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, bool, dict[str, Any]]:
        self.t += 1
        return self.look(), 1.0, self.t == 10, False, {}


class Whole(Good):
    def look(self) -> Any:
        return np.array([10, 20])


class Forgetful(Good):
    def look(self) -> Any:
        return np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)


class Sharing(Good):
    """It draws from generators that a run seeds too."""

    def look(self) -> Any:
        return self.observation_space.sample() * np.float32(np.random.uniform() * random.random())


class Number(Good):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, *rest = super().step(action)
        return obs, reward, int(terminated), *rest


class Masked(Good):
    observation_space = Dict(pos=Box(-1, 1, (2,)), action_mask=Box(0, 1, (3,), np.int8))

    def look(self) -> Any:
        return {"pos": super().look(), "action_mask": np.int8([0, 1, 1])}

    def step(self, action: Any) -> Any:
        assert action, "0 is illegal"
        return super().step(action)


class MaskInInfo(Good):
    observation_space = Dict(pos=Box(-1, 1, (2,)), action_mask=Box(0, 1, (3,), np.int8))

    def look(self) -> Any:
        return {"pos": super().look()}

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**given)[0], {"action_mask": np.int8([1, 1, 1])}

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"action_mask": np.int8([1, 1, 1])}


class Crash(Good):
    def step(self, action: Any) -> Any:
        if self.t == 7:
            raise RuntimeError("the simulator is gone")
        return super().step(action)


class Rare(Crash):
    """One of 25 episodes is lost."""

    episodes = 0

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        Rare.episodes += 1
        return super().reset(**given)

    def step(self, action: Any) -> Any:
        return super().step(action) if Rare.episodes % 25 == 3 else Good.step(self, action)


class Objectives(Good):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, np.zeros(3), *rest


class Unbegun(Good):
    def reset(self, **given: Any) -> Any:
        raise RuntimeError("no level")


class Unseen(Good):
    def look(self) -> Any:
        return np.float32([np.nan, 0])


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


class Clinging(Good):
    def close(self) -> None:
        time.sleep(1000)


class Wide(Good):
    action_space = Box(0, 2e6, (1,))


def found(name: str, seconds: float = BRIEF, **env: Any) -> list[tuple[str, str]]:
    config = RunConfig(env=EnvConfig(id=f"{HOME}:{name}", **env))
    return look(config, config.env.id, seconds)[2]


def odd(name: str, seconds: float = BRIEF, **env: Any) -> list[tuple[str, str]]:
    return [(level, sentence) for level, sentence in found(name, seconds, **env) if level != "ok"]


def test_a_good_environment_is_read_and_timed_and_nothing_else_is_said() -> None:
    read, played = found("Good", THOROUGH)
    assert read == ("ok", "observation 2 float32: numbers, as they are, MLP")
    assert "episodes of 10 steps; a step takes " in played[1]


@pytest.mark.parametrize(
    ("name", "sentences"),
    [
        ("Whole", ["is of type int64, in a Box of float32", "has 10 at [0], outside of its Box of -1 to 1"]),
        ("Forgetful", ["two resets with the same seed give different first observations"]),
        ("Number", [" of type int, expected a boolean"]),
        ("Wide", ["exploration covers the whole action Box, 0 to 2e+06"]),
        ("Rare", ["episodes were lost, most to RuntimeError: the simulator is gone (test_env_check.py:"]),
    ],
)
def test_what_a_run_accepts_and_is_seldom_meant_is_a_warning(name: str, sentences: list[str]) -> None:
    warnings = odd(name)
    assert [level for level, _ in warnings] == ["warning"] * len(sentences)
    assert all(sentence in text for sentence, (_, text) in zip(sentences, warnings, strict=True))


def test_what_a_run_seeds_too_counts_as_seeded() -> None:
    assert odd("Sharing") == []


def test_a_mask_that_is_not_used_as_one_is_named_with_the_setting() -> None:
    mask, failed = odd("Masked")
    assert "--env.action_mask action_mask makes it the mask" in mask[1]
    assert "AssertionError: 0 is illegal" in failed[1]
    assert odd("Masked", THOROUGH, action_mask="action_mask") == []
    ((level, contradicted),) = odd("Masked", action_mask="mask")
    assert level == "error"
    assert "env.action_mask 'mask': there is none" in contradicted
    assert contradicted.endswith("only pos, action_mask")


def test_what_the_check_cannot_judge_is_no_error() -> None:
    assert {level for level, _ in odd("MaskInInfo", action_mask="action_mask")} <= {"warning"}


def test_what_no_run_can_learn_from_is_an_error() -> None:
    assert odd("Objectives") == [
        ("error", f"environment '{HOME}:Objectives': a reward has shape [3], expected a number")
    ]
    with pytest.raises(EnvError, match=r"has no 'Nobody'"):
        found("Nobody")


@pytest.mark.parametrize(
    ("name", "why"), [("Unbegun", "RuntimeError: no level (test_env_check.py:"), ("Unseen", "an observation is array(")]
)
def test_resets_that_always_fail_are_an_error_and_no_step_is_timed(name: str, why: str) -> None:
    read, (level, sentence) = found(name)
    assert (read[0], level) == ("ok", "error")
    assert sentence.startswith(f"every reset failed, the first with {why}")


def test_lost_episodes_are_an_error_if_a_run_would_end_by_them_or_if_the_check_is_thorough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def level(name: str, seconds: float = 60.0, share: float = 0.1) -> str:
        config = RunConfig(env=EnvConfig(id=f"{HOME}:{name}"), learner=LearnerConfig(max_lost_episodes=share))
        (level,) = {level for level, _ in look(config, config.env.id, seconds)[2]} - {"ok"}
        return level

    monkeypatch.setattr(look_at, "MOST", 400)
    assert (level("Crash"), level("Crash", share=1.0), level("Rare", share=0.01)) == ("error", "warning", "error")
    assert (level("Rare"), level("Rare", THOROUGH)) == ("warning", "error")
    monkeypatch.setattr(look_at, "MOST", 100)
    assert level("Crash") == "warning"  # of too few


def test_what_closing_an_environment_does_not_finish_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_at, "CLOSE_S", 0.05)
    assert odd("Clinging") == []


def test_several_agents_are_checked_as_one_is() -> None:
    relay = "tests.build.agents:Relay"
    spec, agents, (*_, (level, sentence)) = look(RunConfig(env=EnvConfig(id=relay)), relay, BRIEF)
    assert (spec.env_id, agents, level) == (relay, 3, "ok")
    assert "episodes of 2 steps" in sentence


def test_the_command_prints_a_line_for_each_finding_and_exits_with_1_for_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert check([f"{HOME}:Objectives"]) == 1
    ok, error = capsys.readouterr().out.splitlines()
    assert ok.startswith("ok       observation 2 float32")
    assert error.startswith("error    environment ")
    with pytest.raises(ConfigError, match="has no 'Nobody'") as caught:
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

    monkeypatch.setattr(spaces, "_answer", process)
    monkeypatch.setattr(spaces, "_seen", cache(spaces._seen.__wrapped__))
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
