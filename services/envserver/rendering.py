"""One environment that can be seen, in a process of its own: that of a session of one environment, and its pictures.

with closing(RenderedEnv(config, limit_s)) as env:
    env.reset(seed)             # or env.step(actions), [1] of `action_record`
    env.rows, env.scene         # [1] of `step_record`, and what there is to see at that moment
"""

import os
import re
import select
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import EnvError, raise_as
from zerobeast.common.settings import EnvConfig
from zerobeast.common.wire import EnvSpec, action_record
from zerobeast.common.wire.bits import unpack_rows
from zerobeast.common.wire.episodes import Entry
from zerobeast.services.envserver.agents import make_shard
from zerobeast.services.envserver.backend import backend_at, is_reference, reference_for
from zerobeast.services.envserver.catalogue import maker
from zerobeast.services.envserver.inline import InlineEnvs
from zerobeast.services.envserver.padding import Padding, make_padded
from zerobeast.services.envserver.scenes import Scene, unpack_scene
from zerobeast.services.envserver.spaces import make_legal
from zerobeast.services.envserver.workers import WorkerVectorEnv

POLL_S = 0.1
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
GRAPHICS = re.compile(r"(?i)egl|osmesa|opengl|glx|glGetError")  #: in errors about a library that draws
WITHOUT_DISPLAY = {"MUJOCO_GL": "egl", "SDL_VIDEODRIVER": "dummy"}  #: how MuJoCo and pygame draw there


class RenderedEnv:
    """One environment, stepped by calls that wait.

    Args:
      config: which environment, and how.
      limit_s: time to make, reset or step it.

    Attributes:
      spec: what it looks like to a policy.
      rows: [N] of `step_record`, the newest, for each of its agents, not packed.
      scene: what there is to see.

    Raises:
      EnvError: it cannot be made; in any method: it failed, died, or cannot be drawn.
    """

    scene: Scene

    def __init__(self, config: EnvConfig, limit_s: float) -> None:
        make = partial(make_padded, partial(_make_renderable, config), Padding(config.pad_obs, config.pad_actions))
        agents = config.agents or 1
        self._env, self._limit_s = _OneEnv(config.id, make, agents, 0, 1, agents), limit_s
        try:
            self._finish()
        except BaseException:
            self.close()
            raise
        self.spec: EnvSpec = self._env.spec
        self._actions = np.zeros(agents, action_record(self.spec.action).dtype)

    @property
    def rows(self) -> NDArray[Any]:
        return unpack_rows(self._env.rows, self.spec)

    @property
    def ends(self) -> list[Entry]:
        """Of the newest rows, as `VectorEnv.episodes`."""
        return self._env.episodes

    def reset(self, seed: int) -> None:
        """Begin an episode, the first that this seed gives."""
        self._env.reset(seed)
        self._finish()

    def step(self, fill: Callable[[NDArray[Any]], None]) -> None:
        """Take a step with the actions that `fill` writes into [N, *action shape]."""
        fill(self._actions["action"])
        errors = self._env.errors
        self._env.step(make_legal(self._actions["action"], self.spec.action))
        self._finish()
        if self._env.errors > errors and self.rows["first"].all():
            raise EnvError(f"environment {self.spec.env_id!r} failed: {self._env.failure or 'its process ended'}")

    def close(self) -> None:
        """End its process; waits for that."""
        self._env.close()
        while not self._env.release(force=True):
            select.select((), (), (), 0.01)

    def _finish(self) -> None:
        while not self._env.collect():
            select.select(self._env.files, (), (), POLL_S)
            self._env.tend(time.monotonic(), self._limit_s)
        if sent := self._env.sent:
            self.scene = unpack_scene(sent)


class _OneEnv(WorkerVectorEnv):
    """Keeps what there is to see, and why the environment failed."""

    failure = ""

    @property
    def sent(self) -> dict[str, Any]:
        outcome = self._workers[0].outcome
        return outcome if "picture" in outcome else {}

    def count_failures(self, failures: list[list[Any]], env_id: str, start: int = 0) -> None:
        del env_id, start
        for _, trace in failures:
            self.errors, self.failure = self.errors + 1, trace.partition("\n")[0]


def _make_renderable(config: EnvConfig, _num_envs: int, seed: int | None, **more: Any) -> InlineEnvs:
    """In the process of the environment."""
    if sys.platform == "linux" and not any(os.environ.get(name) for name in DISPLAYS):
        for name, value in WITHOUT_DISPLAY.items():
            os.environ.setdefault(name, value)
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    reference = "" if is_reference(config.id) else reference_for(config.id)
    if reference and (make_rendered := backend_at(reference, config.id).make_rendered):
        with raise_as(EnvError, f"env.id {config.id!r} cannot be made"):
            return make_rendered(config, seed or 0)
    make = maker(config, reference, render_mode="rgb_array")
    try:
        envs = make_shard(config.id, make, 1, seed, config=config, **more)
    except EnvError as error:
        if "argument 'render_mode'" in str(error):
            raise EnvError(f"env.id {config.id!r} cannot be rendered: its constructor takes no render_mode") from error
        if GRAPHICS.search(str(error)):
            library = f"MUJOCO_GL is {os.environ.get('MUJOCO_GL', 'not set')}; egl needs the library libEGL.so.1"
            raise EnvError(f"{error} ({library})") from error
        raise
    envs.rendered = True
    return envs
