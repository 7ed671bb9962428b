"""What a single environment returns, as peers get it: calls of the form that gymnasium has, spaces and action masks."""

import os
import time
import traceback
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import EnvError, Misfit, WrongInterface
from zerobeast.common.wire import EnvSpec, Space, short
from zerobeast.common.wire.checks import find_forbidden
from zerobeast.services.envserver.spaces import Adapter, action_adapter, env_spec, obs_adapter

CALLS = {"reset": ("observation", "info"), "step": ("observation", "reward", "terminated", "truncated", "info")}
LARGEST = float(np.finfo(np.float32).max)
INFO = (dict, Mapping, type(None))
MISFITS = ("to unpack", "argument 'seed'", "argument 'options'")  #: in what a caller raises about what it calls
MUST_RETURN = "reset(seed, options) must return ({}) and step(action) ({})".format(*map(", ".join, CALLS.values()))


class WatchedEnv:
    """An environment whose newest answer and times are kept."""

    def __init__(self, env: Any) -> None:
        self._env, self.answer = env, list[Any]()
        self.seconds: dict[str, list[float]] = {"reset": [], "step": []}

    def __getattr__(self, name: str) -> Any:
        return partial(self._time_call, name) if name in CALLS else getattr(self._env, name)

    def _time_call(self, name: str, *args: Any, **asked: Any) -> Any:
        began = time.perf_counter()
        self.answer = getattr(self._env, name)(*args, **asked)
        self.seconds[name].append(time.perf_counter() - began)
        return self.answer


class EnvReader(NamedTuple):
    """How the answers of an environment are read, and actions given to it."""

    spec: EnvSpec
    mask: str  #: key of its action masks; "": it has none
    adapt_obs: Adapter
    adapt_action: Adapter

    @classmethod
    def of(cls, env_id: str, env: Any, mask: str = "") -> Self:
        """That of an environment. Raises EnvError if a space is not supported.

        Args:
          env_id: as the user wrote it.
          env: the environment.
          mask: the key of action masks; "": the one that its metadata has as `action_mask`, or none.
        """
        mask = mask or str((env.metadata or {}).get("action_mask", ""))
        obs, action = drop_mask(env.observation_space, mask), env.action_space
        spec = env_spec(env_id, obs, action, masked=bool(mask))
        return cls(spec, mask, obs_adapter(obs), action_adapter(action))

    def legal(self, obs: Any, info: Any, *, over: bool) -> NDArray[np.bool_]:
        """Which choices are legal, as `mask_of`."""
        return mask_of(self.mask, obs, info, self.spec.action, over=over)

    def action(self, chosen: Any) -> Any:
        """What `step` takes for an action as peers send it."""
        action = self.adapt_action(chosen)
        return action.item() if isinstance(action, np.integer) else action


def call_env(env: Any, env_id: str, name: str, *args: Any, **kwargs: Any) -> Any:
    """What reset or step of an environment returns. Raises WrongInterface if that is not what gymnasium's do."""
    try:
        answer = getattr(env, name)(*args, **kwargs)
    except (TypeError, ValueError) as error:
        place = traceback.extract_tb(error.__traceback__)[-1].filename
        ours = place == __file__ or f"{os.sep}gymnasium{os.sep}" in place  # or that of a wrapper
        if not ours or not any(words in str(error) for words in MISFITS):
            raise
        came = str(error)
    else:
        several = isinstance(answer, (tuple, list))
        if several and len(answer) == len(CALLS[name]) and isinstance(answer[-1], INFO):
            return answer
        came = f"{name} returned {type(answer).__name__}{f' of {len(answer)}' if several else ''}"
    raise WrongInterface(f"environment {env_id!r}: {MUST_RETURN}, but {came}")


def reward_of(reward: Any) -> float:
    """A reward as a number. Raises EnvError if it is none that float32 can hold."""
    try:
        number = np.asarray(reward, np.float64).item()
    except (TypeError, ValueError) as error:
        came = f"has shape {list(reward.shape)}" if getattr(reward, "shape", ()) else f"is {short(reward)}"
        raise Misfit(f"a reward {came}, expected a number") from error
    if not abs(number) <= LARGEST:
        raise EnvError(f"a reward is {number}, expected a finite float32")
    return number


def drop_mask(space: Any, key: str) -> Any:
    """A gymnasium observation space without its mask entry."""
    from gymnasium import spaces

    if not key or not isinstance(space, spaces.Dict) or key not in space.spaces:
        return space
    return spaces.Dict({name: part for name, part in space.items() if name != key})


def mask_of(key: str, obs: Any, info: Any, action: Space, *, over: bool) -> NDArray[np.bool_]:
    """Which choices are legal, [choices of all components], as `read_mask`.

    Args:
      key, obs, info, action: as for `read_mask`.
      over: whether the episode has ended, so that there need not be a legal choice.

    Raises:
      EnvError: as `read_mask`, or the mask forbids everything.
    """
    legal = read_mask(key, obs, info, action)
    if sentence := find_forbidden(legal, action):
        if not over:
            raise EnvError(f"env.action_mask {key!r}: a mask {sentence}")
        legal[:] = True
    return legal


def read_mask(key: str, obs: Any, info: Any, action: Space) -> NDArray[np.bool_]:
    """The mask of an observation, [choices of all components], which may forbid everything.

    Args:
      key: of the mask.
      obs: observation that may hold the mask.
      info: holds the mask if the observation does not.
      action: the action space.

    Raises:
      EnvError: there is no mask, it has the wrong size, or holds anything but 0 and 1.
    """
    source = obs if isinstance(obs, dict) and key in obs else info
    if key not in source:
        known = ", ".join(map(str, [*(obs if isinstance(obs, dict) else ()), *info]))
        raise Misfit(f"env.action_mask {key!r}: there is none in the observation or the info of a step, only {known}")
    found = source[key]
    mask = np.concatenate([np.ravel(part) for part in found]) if isinstance(found, tuple) else np.ravel(found)
    size = sum(action.choices)
    if mask.size != size:
        raise EnvError(f"env.action_mask {key!r}: a mask of {mask.size} entries, expected {size}")
    legal: NDArray[np.bool_] = mask.astype(np.bool_)
    if mask.dtype != np.bool_ and not (legal == mask).all():
        raise EnvError(f"env.action_mask {key!r}: a mask holds values other than 0 and 1")
    return legal
