"""Sessions of a backend's environments, as contracts drive them: each answer is waited for."""

import gc
import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from unittest import SkipTest

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import EnvError
from zerobeast.common.settings import EnvConfig, EnvServerConfig
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.common.wire.bits import unpack_rows
from zerobeast.common.wire.episodes import Entry
from zerobeast.services.envserver.catalogue import make_vector_env
from zerobeast.services.envserver.env_check import random_actions
from zerobeast.services.envserver.infos import InfoTable
from zerobeast.services.envserver.vector import VectorEnv

ENVS, SEED, STEPS, MOST = 2, 7, 40, 1000
NUM_BESIDE = 3  #: environments of which the second has a neighbour on either side
FLAGS = ("reward", "terminated", "truncated", "first")
LIMIT_S = 60.0  #: to make, reset or step one environment
Rows = NDArray[Any]


class Session:
    """Environments of a session.

    Args:
      env_id: of the environments.
      settings: others of `env`.
      envs: how many, each of which is as many rows as it has agents.
      seed: of the first.
      masks: whether some may be reset while others play on.
      apart: whether those that the backend makes one by one step in a worker process.
      watch: takes each single environment, and returns what is stepped in its place.

    Attributes:
      env: the vector environment.
      block: how many rows an environment has.
    """

    def __init__(
        self,
        env_id: str,
        settings: dict[str, Any],
        *,
        envs: int = ENVS,
        seed: int = SEED,
        masks: bool = False,
        apart: bool = False,
        watch: Callable[[Any], Any] = lambda env: env,
    ) -> None:
        config = EnvConfig.model_validate({"id": env_id, **settings})
        self.block, server = config.agents or 1, EnvServerConfig(in_process=not apart, workers=1)
        self.env: VectorEnv = make_vector_env(config, envs * self.block, seed, server, masks=masks, watch=watch)
        self.env.infos = InfoTable(envs * self.block)
        self._rng = np.random.default_rng(SEED)
        self._finish()

    def reset(self, *args: Any, **asked: Any) -> Rows:
        """The rows of a reset, as `VectorEnv.reset`."""
        self.env.reset(*args, **asked)
        return self._finish()

    def step(self, actions: NDArray[Any] | None = None) -> Rows:
        """The rows of a step, with legal actions that are drawn if none are given."""
        self.env.step(self.draw() if actions is None else actions.copy())
        return self._finish()

    def draw(self) -> NDArray[Any]:
        """Legal actions at random, the same in sessions of which the same was asked."""
        found: NDArray[Any] = random_actions(self._rng, self.env)
        return found

    def play(self, steps: int = STEPS, ends: int = 0) -> Iterator[Rows]:
        """The rows of at least so many steps, and of so many ends of episodes, if they come."""
        taken = 0
        while taken < steps or (ends > 0 and taken < MOST):
            rows = self.step()
            taken, ends = taken + 1, ends - int((rows["terminated"] | rows["truncated"]).sum())
            yield rows

    def part(self, env: int) -> slice:
        """The rows of an environment."""
        return slice(env * self.block, (env + 1) * self.block)

    @property
    def rows(self) -> Rows:
        """The newest rows, with observations as their spaces have them."""
        return unpack_rows(self.env.rows, self.env.spec).copy()

    @property
    def episodes(self) -> list[Entry]:
        """What the newest rows report of episodes."""
        return self.env.episodes

    def infos(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """The infos of the newest rows, those of a map one by one."""
        for name, values in (self.env.infos.infos if self.env.infos else {}).items():
            yield from values.items() if isinstance(values, dict) else [(name, values)]

    def close(self) -> None:
        self.env.close()
        while not self.env.release(force=True):
            select.select((), (), (), 0.01)

    def _finish(self) -> Rows:
        while not self.env.collect():
            select.select(self.env.files, (), (), 0.0 if self.env.inline else 0.05)
            self.env.tend(time.monotonic(), LIMIT_S)
        return self.rows


@contextmanager
def session(env_id: str, settings: dict[str, Any], **more: Any) -> Iterator[Session]:
    """A session that is closed in the end; see `Session`."""
    with closing(Session(env_id, settings, **more)) as opened:
        yield opened


class SecondFails:
    """Takes each environment that is made, of which the second will raise in a step, once."""

    AT = 3  #: steps before that

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, env: Any) -> Any:
        self.made += 1
        return FailingEnv(env, self.AT) if self.made == 2 else env


class FailingEnv:
    """An environment that raises after some steps."""

    def __init__(self, env: Any, steps: int) -> None:
        self._env, self._left = env, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("this environment raises on purpose")
        return self._env.step(action)


@contextmanager
def open_independent(env_id: str, settings: dict[str, Any], **more: Any) -> Iterator[Session]:
    """A session of which some may be reset while others play on; raises SkipTest if there is none."""
    try:
        opened = Session(env_id, settings, masks=True, **more)
    except EnvError as error:
        raise SkipTest("none is reset for itself") from error
    with closing(opened):
        if not opened.env.independent:
            raise SkipTest("one generator serves all, or several agents are one environment")
        yield opened


@contextmanager
def expect_refusal(what: str) -> Iterator[None]:
    try:
        yield
    except EnvError:
        return
    raise AssertionError(f"{what} is accepted")


def check_same(found: Rows, expected: Rows, why: str) -> None:
    for name in found.dtype.names or ():
        one, other = found[name], expected[name]
        assert np.array_equal(one, other), f"{why}: {name} is {one!r:.100} instead of {other!r:.100}"


def larger_sizes(spec: EnvSpec, env: dict[str, Any]) -> dict[str, Any]:
    """Sizes of padding that are larger by one than those of an environment, if it can be padded and is not yet."""
    sizes = dict[str, Any]()
    if isinstance(spec.obs, ArraySpace) and spec.obs.kind == "box" and not env.get("pad_obs"):
        sizes["pad_obs"] = [size + 1 for size in spec.obs.shape]
    if isinstance(spec.action, ArraySpace) and spec.action.kind == "discrete" and not env.get("pad_actions"):
        sizes["pad_actions"] = spec.action.choices[0] + 1
    return sizes


def check_same_but_padding(found: Rows, plain: Rows) -> None:
    """Check rows with padding by `larger_sizes` against those without it."""
    for name in FLAGS:
        assert (found[name] == plain[name]).all(), f"padding changes {name}"
    if "action_mask" in (found.dtype.names or ()):
        own = plain["action_mask"] if "action_mask" in (plain.dtype.names or ()) else np.True_
        legal = found["action_mask"]
        added = legal.shape[1] - (own.shape[1] if own.shape else legal.shape[1] - 1)
        assert (legal[:, : legal.shape[1] - added] == own).all(), "padding changes the mask"
        assert not legal[:, legal.shape[1] - added :].any(), "a choice of padding is legal"
    if found["obs"].shape != plain["obs"].shape:
        inner = found["obs"][tuple(map(slice, plain["obs"].shape))]
        assert (inner == plain["obs"]).all(), "padding changes observations"
        assert np.count_nonzero(found["obs"]) == np.count_nonzero(inner), "padding is not zeros"


def count_resources() -> tuple[int, int]:
    """How many processes and open files this process has."""
    import psutil

    gc.collect()
    return len(psutil.Process().children(recursive=True)), len(os.listdir("/proc/self/fd"))
