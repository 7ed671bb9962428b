"""The emulator's rows against ale-py's own vector environment, and whole games through lost lives."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv as Reference

from tests.helpers import ROOT
from zerobeast.common.errors import EnvError
from zerobeast.common.settings import EnvConfig
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.services.envserver.atari import AtariVectorEnv
from zerobeast.services.envserver.frames import Frames
from zerobeast.services.envserver.gymnasium_backend import NativeVectorEnv
from zerobeast.services.envserver.inline import InlineEnvs, InlineVectorEnv
from zerobeast.services.envserver.vector import rows_for
from zerobeast.testing.sessions import Session


def begin(rom: str, num_envs: int = 2, seed: int = 1, **settings: Any) -> AtariVectorEnv:
    env = AtariVectorEnv(rom, Frames(**{"id": "any", **settings}), num_envs, seed, threads=1)
    env.reset()
    return env


def reference(rom: str, num_envs: int = 2, **settings: Any) -> Reference:
    settings = {"stack_num": 1, "reward_clipping": False, "use_fire_reset": False, **settings}
    return Reference(rom, num_envs, num_threads=1, **settings)


def played(env: AtariVectorEnv, actions: np.ndarray) -> np.ndarray:
    env.begin_step(actions.copy())
    env.finish_step()
    return env.rows


def random_actions(env: AtariVectorEnv, steps: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng(0)
    for _ in range(steps):
        yield generator.integers(0, env.spec.action.sizes[0], env.num_envs)


def test_the_limit_on_an_episode_counts_emulator_frames_and_truncates() -> None:
    env = begin("pong", 1, max_episode_frames=100)
    ends = []
    for t in range(1, 80):
        rows = played(env, np.zeros(1, np.int64))
        assert not rows["terminated"].any()
        if rows["truncated"].any():
            ends.append((t, env.episodes[0][1]))
    assert ends == [(25, 25), (51, 25), (77, 25)], "25 steps of 4 frames, then one row that opens the next episode"


@pytest.mark.parametrize("episodic_life", [False, True])
def test_rows_are_those_of_the_reference_but_for_the_ends_of_lives_if_asked_for(*, episodic_life: bool) -> None:
    env, other = begin("breakout", episodic_life=episodic_life), reference("breakout", stack_num=4)
    obs, info = other.reset(seed=np.array([1, 2]))
    assert env.rows["first"].all()
    assert (env.rows["obs"] == obs[:, -1]).all()
    lives = info["lives"].copy()
    lost = over = np.zeros(2, bool)
    returns, lengths, finished, losses = np.zeros(2), np.zeros(2, int), [], 0
    for actions in random_actions(env, 400):
        rows = played(env, actions)
        obs, reward, terminated, truncated, info = other.step(np.where(lost, 0, actions))
        first = lost | over
        assert (rows["obs"] == obs[:, -1]).all(), "the same game, with a no-op where a life was lost"
        assert (rows["first"] == first).all()
        assert (rows["reward"] == np.where(first, 0, reward)).all()
        assert (rows["truncated"] == truncated).all()
        over = terminated | truncated
        lost = (info["lives"] < lives) & ~over & ~first & episodic_life
        lives = info["lives"].copy()
        assert (rows["terminated"] == (lost | terminated) & ~first).all()
        losses += int(lost.sum())
        returns, lengths = returns + reward, lengths + ~first
        for i in np.flatnonzero(over):
            finished.append([returns[i], lengths[i]])
            returns[i] = lengths[i] = 0
        assert [entry[:2] for entry in env.episodes if entry] == finished[len(finished) - int(over.sum()) :]
        assert [bool(entry) for entry in env.episodes] == over[rows["terminated"] | rows["truncated"]].tolist()
    assert len(finished) >= 2
    assert losses >= 4 * len(finished) * episodic_life, "five lives make a game"


def test_fire_starts_the_next_life_if_asked_for() -> None:
    env = begin("breakout", 1, episodic_life=True, fire_reset=True)
    other = reference("breakout", 1, use_fire_reset=True)
    other.reset(seed=np.array([1]))
    lost, losses = False, 0
    for _ in range(200):
        rows = played(env, np.array([2]))
        obs, *_ = other.step(np.array([1 if lost else 2]))
        assert (rows["obs"] == obs[:, 0]).all()
        lost = bool(rows["terminated"][0]) and not any(env.episodes)
        losses += lost
    assert losses >= 4


def test_settings_reach_the_emulator() -> None:
    spec = begin("pong", 1, seed=2**31 - 1).spec  # the highest
    assert (spec.obs.shape, spec.obs.dtype, spec.frame_stack, spec.frame_skip) == ((84, 84), "|u1", 4, 4)
    env = begin("pong", 1, frame_size=42, full_action_space=True, frame_stack=2, frame_skip=2)
    assert (env.spec.obs.shape, env.spec.action.sizes) == ((42, 42), (18,))
    assert (env.spec.frame_stack, env.spec.frame_skip) == (2, 2)
    assert begin("pong", 1, kwargs={"grayscale": False}).spec.obs.shape == (84, 84, 3)
    env = begin("pong", 1, kwargs={"continuous": True}, episodic_life=True)
    assert (env.spec.action.kind, env.spec.action.shape) == ("box", (3,))
    assert played(env, np.zeros((1, 3), np.float32))["obs"].any()


@pytest.mark.parametrize(
    ("env_id", "settings", "sticky"),
    [("ALE/Pong-v5", {}, 0.25), ("PongNoFrameskip-v4", {}, 0.0), ("ALE/Pong-v5", {"sticky_actions": 0.9}, 0.9)],
)
def test_sticky_actions_are_those_that_the_id_means(env_id: str, settings: dict[str, float], sticky: float) -> None:
    def frames(**given: Any) -> np.ndarray:
        env = begin("pong", 1, noop_max=0, **given)
        return np.stack([played(env, actions)["obs"].copy() for actions in random_actions(env, 60)])

    found = frames(id=env_id, **settings)
    assert (found == frames(sticky_actions=sticky)).all()
    assert (found != frames(sticky_actions=0.5)).any()


def test_an_error_of_the_emulator_ends_the_session_with_a_sentence() -> None:
    env = InlineVectorEnv(lambda n, seed: begin("pong", n, seed), 2, seed=1, most=2)
    while not env.collect():
        pass
    with pytest.raises(EnvError, match="'any'"):
        env.step(np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [("ALE/Pong-v5", {"mode": 1}), ("PongNoFrameskip-v4", {"obs_type": "ram"}), ("ALE/Pong-ram-v5", {})],
)
def test_modes_and_ram_are_refused_with_the_id_that_takes_them(env_id: str, kwargs: dict[str, Any]) -> None:
    with pytest.raises(EnvError) as refusal:
        Session(env_id, {"kwargs": kwargs}, envs=1)
    way_out = re.search(r"--env (ale_py:\S+)", str(refusal.value))
    assert way_out
    env = Session(way_out[1], {"kwargs": kwargs or {"obs_type": "ram"}}, envs=1).env
    assert env.spec.obs.arrays[0].shape == ((128,) if "-ram" in env_id or "obs_type" in kwargs else (210, 160, 3))


def test_the_file_of_the_page_gives_a_game_in_another_mode_the_usual_frames(tmp_path: Path) -> None:
    pytest.importorskip("cv2", reason="gymnasium's frames of Atari's games need opencv")
    page = (ROOT / "docs" / "environments.md").read_text()
    (code,) = re.findall(r"```python\n(import ale_py\n.*?)```", page, re.DOTALL)
    (tmp_path / "atari_modes.py").write_text(code)
    asked = {"game": "ALE/Freeway-v5", "mode": 1, "difficulty": 1}
    session = Session(f"{tmp_path}/atari_modes.py:make", {"kwargs": asked}, envs=1)
    assert (session.env.spec.obs.arrays[0].shape, session.env.spec.obs.arrays[0].image_size) == ((4, 84, 84), (84, 84))
    session.reset()
    assert session.step()["obs"].any()


BREAKOUT = Frames(id="ALE/Breakout-v5", frame_skip=4, max_episode_frames=100)


def test_each_turn_makes_a_part_or_resets_it_and_the_rows_are_those_of_one_vector_environment() -> None:
    asked = []

    def make(n: int, seed: int) -> InlineEnvs:
        asked.append((n, seed))
        return AtariVectorEnv("breakout", BREAKOUT, n, seed, threads=1)

    whole, parts = InlineVectorEnv(make, 3, 3, 3), InlineVectorEnv(make, 3, 3, most=2)
    turns = [(parts.collect(), len(asked)) for _ in range(4)]
    assert turns == [(False, 1), (False, 1), (False, 2), (True, 2)]
    assert asked == [(2, 3), (1, 5)]
    while not whole.collect():
        pass
    assert parts.spec == whole.spec
    generator, ends = np.random.default_rng(0), 0
    for t in range(60):
        if t % 40 == 0:
            for env in (whole, parts):
                env.reset()  # of which the first is the one that has seeded them
                assert env.collect()
                assert not env.collect()
        assert (parts.rows == whole.rows).all()
        assert parts.episodes == whole.episodes
        ends += len(whole.episodes)
        actions = generator.integers(0, 4, 3)
        for env in (whole, parts):
            env.step(actions.copy())
            assert env.collect()
    assert ends > 0
    parts.close()
    whole.close()


def test_an_observed_choice_out_of_range_is_refused() -> None:
    env = NativeVectorEnv(EnvConfig(id="CartPole-v1"), 2, 0)
    env.spec = env.own = EnvSpec("Choice-v0", ArraySpace.discrete(5), ArraySpace.discrete(2))
    env.write_to(rows_for(env.spec, 2))
    env.fill_first(np.array([4, 0]))
    with pytest.raises(EnvError, match="the choice 5"):
        env.fill_first(np.array([0, 5]))
    env.close()
