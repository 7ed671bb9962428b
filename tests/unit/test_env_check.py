"""What `beast check` and the start of a run say about an environment."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import zerobeast as zb
from zerobeast.cli.check import main as check
from zerobeast.common.errors import ConfigError, EnvError
from zerobeast.common.settings import EnvConfig, RunConfig
from zerobeast.launcher import env_check
from zerobeast.services.envserver.check import checked

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
        return np.random.uniform(-1, 1, 2).astype(np.float32)


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


class Objectives(Good):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, np.zeros(3), *rest


class Wide(Good):
    action_space = Box(0, 2e6, (1,))


def found(name: str, *, brief: bool = True, **env: Any) -> list[tuple[str, str]]:
    config = RunConfig(env=EnvConfig(id=f"{HOME}:{name}", **env))
    return list(checked(config, brief=brief))


def odd(name: str, **env: Any) -> list[tuple[str, str]]:
    return [(level, sentence) for level, sentence in found(name, **env) if level != "ok"]


def test_a_good_environment_is_read_and_timed_and_nothing_else_is_said() -> None:
    read, played = found("Good", brief=False)
    assert read == ("ok", "observation 2 float32: numbers, as they are, MLP")
    assert "episodes of 10 steps; a step takes " in played[1]


@pytest.mark.parametrize(
    ("name", "sentences"),
    [
        ("Whole", ["is of type int64, in a Box of float32", "has 10 to 20, outside of its Box of -1 to 1"]),
        ("Forgetful", ["two resets with the same seed begin with different observations"]),
        ("Number", ["terminated is 0 of type int, expected a boolean"]),
        ("Wide", ["actions are explored in all of their Box, 0 to 2e+06"]),
        ("Crash", ["episodes were lost, most to RuntimeError: the simulator is gone (test_env_check.py:"]),
    ],
)
def test_what_a_run_accepts_and_is_seldom_meant_is_a_warning(name: str, sentences: list[str]) -> None:
    warnings = odd(name)
    assert [level for level, _ in warnings] == ["warning"] * len(sentences)
    assert all(sentence in text for sentence, (_, text) in zip(sentences, warnings, strict=True))


def test_a_mask_that_is_not_used_as_one_is_named_with_the_setting() -> None:
    mask, failed = odd("Masked")
    assert "--env.action_mask action_mask makes it the mask" in mask[1]
    assert "AssertionError: 0 is illegal" in failed[1]
    assert odd("Masked", action_mask="action_mask") == []


def test_what_the_check_cannot_judge_is_no_error() -> None:
    assert {level for level, _ in odd("MaskInInfo", action_mask="action_mask")} <= {"warning"}


def test_what_no_run_can_learn_from_is_an_error() -> None:
    assert odd("Objectives") == [
        ("error", f"environment '{HOME}:Objectives': a reward has shape [3], expected a number")
    ]
    assert odd("Crash", brief=False)[0][0] == "error"
    with pytest.raises(EnvError, match=r"has no 'Nobody'"):
        found("Nobody")


def test_several_agents_are_checked_as_one_is() -> None:
    relay = EnvConfig(id="tests.integration.relay_env:Relay")
    *_, (level, sentence) = checked(RunConfig(env=relay), brief=True)
    assert level == "ok"
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
    answers, asked = [("ok", "fine"), ("warning", "hm")], list[str]()
    monkeypatch.setattr(env_check, "findings", lambda config, _command: asked.append(config.env.id) or answers)
    (tmp_path / "walk.py").write_text("class Walk: ...\n")
    walk = f"{tmp_path}/walk.py:Walk"

    def begin(env_id: str, **env: Any) -> list[str]:
        return list(env_check.first_check(RunConfig(env=EnvConfig(id=env_id, **env))))

    assert begin(walk) == [f"{walk}: hm"]
    assert begin(walk) == begin("CartPole-v1") == begin("zipf(a:B,c:D;1)") == []
    assert begin(walk, kwargs={"size": 2}) == [f"{walk}: hm"]
    (tmp_path / "walk.py").write_text("class Walk: x = 1\n")
    answers.append(("error", "no"))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"^no$"):
            begin(walk)
    assert asked == [walk] * 4
