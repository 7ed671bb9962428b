"""Every id that gymnasium has registered and no other backend claims: some have a vectorised implementation there, such
as CartPole-v1, and of all others single environments are made.
"""

import contextlib
import functools
import importlib
import sys
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import EnvError, raise_as
from zerobeast.common.process.terminal import write
from zerobeast.common.settings import EnvConfig
from zerobeast.common.wire import EnvSeeds, EnvSpec
from zerobeast.services.envserver.atari import refuse_raw
from zerobeast.services.envserver.backend import Backend, VectorRequest, unknown_id_error
from zerobeast.services.envserver.infos import extract_numbers
from zerobeast.services.envserver.inline import InlineEnvs, InlineVectorEnv
from zerobeast.services.envserver.spaces import Adapter, action_adapter, env_spec, obs_adapter
from zerobeast.services.envserver.vector import EnvMask


def make(env_id: str, kwargs: dict[str, Any]) -> Any:
    """Make one environment; raises whatever gymnasium and its constructor do."""
    import gymnasium

    _calm_mujoco(env_id)
    return gymnasium.make(env_id, **{"disable_env_checker": True, **kwargs})


def make_vec(request: VectorRequest) -> InlineVectorEnv | None:
    """Gymnasium's vectorised implementation, if there is one with our autoreset rule.

    Raises:
      EnvError: the id is unknown, or is of a game whose settings it decides.
    """
    import gymnasium
    from gymnasium.envs.registration import load_env_creator
    from gymnasium.vector import AutoresetMode, VectorEnv

    config = request.config
    refuse_raw(config.id)
    with raise_as(partial(unknown_id_error, config.id), "", gymnasium.error.Error):
        entry_point: Any = gymnasium.spec(config.id).vector_entry_point
    made_by = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    if not (isinstance(made_by, type) and issubclass(made_by, VectorEnv)):
        return None
    if made_by.metadata.get("autoreset_mode") is not AutoresetMode.NEXT_STEP:
        return None
    if config.action_mask or request.masks:  # it cannot reset some copies and leave the others
        return None
    return InlineVectorEnv(partial(NativeVectorEnv, config), request.num_envs, request.seed, request.num_envs)


def ids() -> list[str]:
    import gymnasium

    return [name for name, spec in gymnasium.registry.items() if not str(spec.entry_point).startswith("ale_py")]


def _calm_mujoco(name: str) -> None:
    """Make MuJoCo print each warning once; by default it repeats them for every environment, and in a file."""
    import gymnasium

    spec = gymnasium.registry.get(name)
    if spec is None or not str(spec.entry_point).startswith("gymnasium.envs.mujoco"):
        return
    with contextlib.suppress(ImportError):  # gymnasium reports what is missing
        importlib.import_module("mujoco").set_mju_user_warning(lambda text: warn_once(f"MuJoCo: {text}"))


@functools.lru_cache(maxsize=100)  # some contain the simulation time, so no two are alike
def warn_once(text: str) -> None:
    """Write a line to the log of this process, unless it has been written before."""
    write(text, sys.stderr)


class GymVectorEnvs(InlineEnvs):
    """Steps what has the interface of gymnasium's vector environments, with the autoreset NEXT_STEP.

    Args:
      env: steps N of them.
      spec: what one looks like.
      adapt_obs: converts observations [N, ...] for sending.
      adapt_action: converts actions [N, ...] to those that `env` expects.
      num_envs: N.
    """

    independent = False

    def __init__(self, env: Any, spec: EnvSpec, adapt_obs: Adapter, adapt_action: Adapter, num_envs: int) -> None:
        super().__init__(spec, num_envs)
        self._env, self._adapt_obs, self._adapt_action = env, adapt_obs, adapt_action
        self._done = np.zeros(num_envs, np.bool_)

    def begin_episodes(self, obs: Any, infos: dict[str, Any]) -> None:
        """Fill first rows with what a reset of all returned."""
        self.infos = self.select_infos(infos)
        self._done[:] = False
        self.fill_first(self._adapt_obs(obs))

    def begin_step(self, actions: NDArray[Any]) -> None:
        self.actions = self._adapt_action(actions)

    def finish_step(self) -> None:
        obs, reward, terminated, truncated, infos = self._env.step(self.actions)
        self.infos = self.select_infos(infos)
        first, self._done = self._done, terminated | truncated
        self.episodes = self.statistics.update(
            np.where(first, 0, reward), first, self._done, partial(extract_numbers, self.infos)
        )
        self.fill(self._adapt_obs(obs), reward, terminated, truncated, first)

    def select_infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        """The infos that clients get, and of whose numbers there are statistics."""
        return infos

    def close(self) -> None:
        self._env.close()


class NativeVectorEnv(GymVectorEnvs):
    """A gymnasium vector environment, none of which (gymnasium 1.4) can reset some copies and leave the others.

    It has one random generator for all its copies, which the session's seed seeds.

    Args:
      config: which environment; its id has a vectorised implementation.
      num_envs: N.
      seed: of the first reset.

    Raises:
      EnvError: it cannot be made.
    """

    def __init__(self, config: EnvConfig, num_envs: int, seed: int) -> None:
        import gymnasium

        kwargs: dict[str, Any] = dict(config.kwargs)
        with raise_as(EnvError, f"env.id {config.id!r} cannot be made"):
            env: Any = gymnasium.make_vec(config.id, num_envs, vectorization_mode="vector_entry_point", **kwargs)
        obs, action = env.single_observation_space, env.single_action_space
        super().__init__(env, env_spec(config.id, obs, action), obs_adapter(obs), action_adapter(action), num_envs)
        self._seed: int | None = seed

    def reset(self, seed: EnvSeeds = None, options: dict[str, Any] | None = None, only: EnvMask = None) -> None:
        del only  # masks are refused before
        answer = self._env.reset(seed=self._seed if seed is None else seed, options=options)
        self._seed = None
        self.begin_episodes(*answer)


BACKEND = Backend(make, make_vec, ids)
