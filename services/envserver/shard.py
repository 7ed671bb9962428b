"""Single environments in this process, stepped one after the other: in a worker, or in the env-server itself."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import EnvError
from zerobeast.common.runtime.seeds import EnvSeeds, one_by_one
from zerobeast.common.wire.checks import stray
from zerobeast.common.wire.spaces import ArraySpace, by_array
from zerobeast.services.envserver.infos import InfoTable
from zerobeast.services.envserver.making import make_env
from zerobeast.services.envserver.masks import mask_of, without_mask
from zerobeast.services.envserver.spaces import action_adapter, env_spec, obs_adapter
from zerobeast.services.envserver.vector import Only, contained, rows_for

MAX_FAILURES = 10  #: of one environment without a step in between, after which its session ends
MAX_TEXT = 4000
LARGEST = float(np.finfo(np.float32).max)
BACKOFF_S, LONGEST_BACKOFF_S = 0.1, 2.0


def backoff_s(failures: int) -> float:
    """How long to wait before the next try: not at all after the first failure in a row, then ever longer."""
    return 0.0 if failures < 2 else min(LONGEST_BACKOFF_S, BACKOFF_S * 2 ** (failures - 2))


def trace_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-MAX_TEXT:]


class Shard:
    """Some of a session's environments.

    Args:
      env_id: as the user wrote it.
      kwargs: of the constructor.
      num_envs: n.
      seed: of the first environment's first reset, or None.
      infos: table to fill with the infos of each answer, if they are wanted.
      mask: the key of action masks, or "".
      progress: called after each environment that was made, reset or stepped.

    Raises:
      EnvError: they cannot be made.
    """

    def __init__(
        self,
        env_id: str,
        kwargs: dict[str, Any],
        num_envs: int,
        seed: int | None,
        infos: InfoTable | None = None,
        mask: str = "",
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.env_id = env_id
        self.kwargs = kwargs
        self.mask = mask
        self.num_envs = num_envs
        self.infos = infos
        self._progress = progress
        self.failures: list[list[Any]] = []  #: since the caller last took them
        self._envs = [self._make() for _ in range(num_envs)]
        self._seeds = one_by_one(seed, num_envs)
        self._done = np.zeros(num_envs, np.bool_)
        self._in_a_row = [0] * num_envs
        obs, action = without_mask(self._envs[0].observation_space, mask), self._envs[0].action_space
        self.spec = env_spec(env_id, obs, action, masked=bool(mask))
        self._adapt_obs, self._adapt_action = obs_adapter(obs), action_adapter(action)
        self.rows = rows_for(self.spec, num_envs)
        self._columns = tuple(by_array(self.spec.obs, self.rows["obs"]))

    def reset(self, seed: EnvSeeds = None, options: dict[str, Any] | None = None, only: Only = None) -> None:
        """Begin new episodes; as `VectorEnv.reset`. Raises EnvError if an environment cannot be reset at all."""
        self._forget_infos()
        seeds = one_by_one(seed, self.num_envs)
        for i in range(self.num_envs) if only is None else np.flatnonzero(only).tolist():
            if seeds[i] is not None:
                self._seeds[i] = seeds[i]
            if options is None:
                self._reset(i)
            else:
                with contained(f"environment {self.env_id!r} cannot be reset with options {options!s:.200}"):
                    self._open_episode(i, options)

    def step(self, actions: NDArray[Any]) -> None:
        """Step all environments with actions [n, *action shape]. Raises EnvError if one cannot go on at all."""
        self._forget_infos()
        for i, env in enumerate(self._envs):
            if self._done[i]:
                self._reset(i)
                continue
            try:
                action = self._adapt_action(actions[i])
                self._write(i, *env.step(action.item() if isinstance(action, np.integer) else action))
            except Exception as error:  # foreign code: contained, counted and reported
                self._replace(i, error)
            else:
                self._in_a_row[i] = 0
                self._progress()

    def _make(self) -> Any:
        env = make_env(self.env_id, self.kwargs)
        self._progress()
        return env

    def close(self) -> None:
        for env in self._envs:
            _close(env)

    def _write(self, i: int, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> None:
        row = self.rows[i]
        entries = by_array(self.spec.obs, self._adapt_obs(obs))
        for (space, column), (_, value) in zip(self._columns, entries, strict=True):
            column[i] = _checked(value, space)
        if self.mask:
            over = bool(terminated or truncated)
            row["action_mask"] = mask_of(self.mask, obs, info, self.spec.action, over=over)
        number = np.asarray(reward, np.float64).item()
        if not abs(number) <= LARGEST:
            raise EnvError(f"a reward is {number}, expected a finite float32")
        row["reward"] = number
        row["terminated"], row["truncated"], row["first"] = bool(terminated), bool(truncated), False
        self._done[i] = terminated or truncated
        if self.infos is not None:
            self.infos.put_one(info, i)

    def _reset(self, i: int) -> None:
        try:
            self._open_episode(i, None)
        except Exception as error:  # foreign code, as in step
            self._replace(i, error)

    def _open_episode(self, i: int, options: dict[str, Any] | None) -> None:
        seed, self._seeds[i] = self._seeds[i], None
        asked = {} if options is None else {"options": options}
        obs, info = self._envs[i].reset(seed=seed, **asked)
        self._write(i, obs, 0.0, terminated=False, truncated=False, info=info)
        self.rows[i]["first"] = True
        self._progress()

    def _forget_infos(self) -> None:
        if self.infos is not None:
            self.infos.clear()

    def _replace(self, i: int, error: Exception) -> None:
        """Replace an environment that raised, as often as it takes, and open an episode in it."""
        while True:
            self.failures.append([i, trace_of(error)])
            self._in_a_row[i] += 1
            _close(self._envs[i])
            with contained(f"environment {self.env_id!r} failed {self._in_a_row[i]} times without a step in between"):
                if self._in_a_row[i] >= MAX_FAILURES:
                    raise error
            time.sleep(backoff_s(self._in_a_row[i]))
            try:
                self._envs[i] = self._make()
                self._open_episode(i, None)
            except Exception as another:  # foreign code, as in step
                error = another
            else:
                return


def _checked(obs: Any, space: ArraySpace) -> NDArray[Any]:
    """An observation as an array of the declared shape and kind; numpy would silently broadcast or cut others."""
    array, dtype = np.asarray(obs), np.dtype(space.dtype)
    if array.shape != space.shape:
        raise EnvError(f"an observation has shape {array.shape}, its space says {space.shape}")
    if array.dtype.kind not in "biuf":
        raise EnvError(f"an observation holds {array.dtype}, its space says {dtype}")
    with np.errstate(all="ignore"):
        stored = array.astype(dtype, copy=False)
    if dtype.kind == "f":
        if not np.isfinite(stored).all():
            raise EnvError("an observation holds a value that is not finite")
    elif stored is not array and not (stored == array).all():
        raise EnvError(f"an observation of {array.dtype} holds a value that its space's {dtype} cannot")
    if found := stray(stored[None], space):
        raise EnvError(f"an observation holds the choice {found[1]}, counted from 0")
    return stored


def _close(env: Any) -> None:
    with contextlib.suppress(Exception):  # foreign code, and nothing depends on it
        env.close()
