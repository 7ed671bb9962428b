"""Environments that can be seen: they step as those of the env-server, in a process of their own."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from ctypes.util import find_library
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.build.envs import ON_PURPOSE
from tests.build.odd import DRAWN, ODD
from zerobeast.common.errors import EnvError
from zerobeast.common.settings import EnvConfig
from zerobeast.services.envserver import atari
from zerobeast.services.envserver.rendering import RenderedEnv
from zerobeast.services.envserver.scenes import drawn, scene, scene_of
from zerobeast.testing.sessions import session

SEED = 7


@contextmanager
def rendered(env_id: str, **settings: Any) -> Iterator[RenderedEnv]:
    with closing(RenderedEnv(EnvConfig(id=env_id, **settings), 60.0)) as env:
        env.reset(SEED)
        yield env


@pytest.mark.parametrize(
    ("env_id", "count", "settings"),
    [
        ("ALE/Breakout-v5", 300, {"frame_skip": 3, "max_episode_frames": 400}),  # sticky actions, over the end of games
        ("MinAtar/Breakout-v1", 30, {}),
        ("zipf/Gridworld-small", 60, {}),
        ("envpool/MiniGrid-Empty-Random-5x5-v0", 30, {}),
        ("Pendulum-v1", 20, {}),
    ],
)
def test_it_steps_as_the_environment_of_the_env_server(env_id: str, count: int, settings: dict[str, Any]) -> None:
    ends = 0
    with rendered(env_id, **settings) as env, session(env_id, settings, envs=1, seed=SEED) as other:
        other.reset()
        assert env.spec == other.env.spec
        for actions in (other.draw() for _ in range(count)):
            assert np.array_equal(env.rows, other.rows)
            env.step(lambda into, actions=actions: np.copyto(into, actions))  # type: ignore[misc]
            other.step(actions)
            ends += int(env.rows["terminated"][0] | env.rows["truncated"][0])
        assert np.array_equal(env.rows, other.rows)
        assert env.scene.picture.shape[2] == 3
        if "MinAtar" in env_id:
            assert env.scene.names == ["no-op", "left", "right"]
            assert env.scene.picture.max() > 1, "its reals up to 1 are bytes up to 255"
    assert ends or "Breakout" not in env_id


def test_atari_is_drawn_in_colour_and_at_its_own_size_with_the_names_of_its_actions() -> None:
    with rendered("PongNoFrameskip-v4") as env:
        assert env.scene.picture.shape == (210, 160, 3)
        assert (env.scene.fps, env.scene.names[:3]) == (15.0, ["NOOP", "FIRE", "RIGHT"])
        assert len(np.unique(env.scene.picture.reshape(-1, 3), axis=0)) >= 3
        grey = env.scene.picture @ np.array([0.299, 0.587, 0.114])
        assert abs(grey.mean() - env.rows["obs"].mean()) < 2, "the same moment"


def test_an_emulator_that_goes_another_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    env = atari.RenderedAtari(EnvConfig(id="ALE/Pong-v5"), SEED)
    env.reset()
    env.twin.reset(seed=np.array([SEED + 1]))
    with pytest.raises(EnvError, match="emulators"):
        [env.step(np.array([2])) for _ in range(200)]
    env.close()


@pytest.mark.skipif(find_library("EGL") is None, reason="there is no libEGL, as Debian's libegl1 brings it")
def test_mujoco_draws_without_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    with rendered("InvertedPendulum-v5", kwargs={"width": 64, "height": 48}) as env:
        assert (env.scene.picture.shape, env.scene.fps) == ((48, 64, 3), 25.0)
        assert env.scene.picture.std() > 1
    assert "MUJOCO_GL" not in os.environ


@pytest.mark.parametrize(
    ("env_id", "kwargs", "named"),
    [
        (DRAWN, {}, "returned None"),
        (ODD, {"at": -1}, "render_mode"),
        (DRAWN, {"die_at": 2}, "process ended"),
        (DRAWN, {"raise_at": 2}, ON_PURPOSE),
        ("Nope-v0", {}, "Nope-v0"),
        ("football/5_vs_5", {}, "no pictures"),
        ("envpool/Taxi-v3", {}, "RuntimeError"),
    ],
)
def test_what_cannot_be_drawn_or_fails_is_refused(env_id: str, kwargs: dict[str, Any], named: str) -> None:
    with pytest.raises(EnvError, match=named), rendered(env_id, kwargs=kwargs) as env:
        [env.step(lambda into: into.fill(0)) for _ in range(5)]


@pytest.mark.parametrize("fps", [None, "fast", -1, float("nan")])
def test_a_pace_that_is_none_becomes_a_usual_one_and_pictures_lose_their_transparency(fps: Any) -> None:
    picture = drawn(SimpleNamespace(render=lambda: np.full((2, 4, 4), 9, np.uint8)), "x")
    found = scene_of(scene(picture, fps, []))
    assert (found.fps, found.picture.tolist()) == (15.0, [[[9, 9, 9]] * 4] * 2)
