"""Environments for which gymnasium has a vectorised implementation of their own, such as CartPole-v1."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.settings.run import EnvConfig
from zerobeast.common.wire.seeds import EnvSeeds
from zerobeast.services.envserver.inline import InlineEnvs
from zerobeast.services.envserver.spaces import action_adapter, env_spec, obs_adapter
from zerobeast.services.envserver.vector import Only, contained


class NativeVectorEnv(InlineEnvs):
    """Steps a gymnasium vector environment whose autoreset is NEXT_STEP.

    Such an environment has one random generator for all its copies, which the session's seed seeds.

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
        with contained(f"env.id {config.id!r} cannot be made"):
            env = gymnasium.make_vec(config.id, num_envs, vectorization_mode="vector_entry_point", **kwargs)
        obs, action = env.single_observation_space, env.single_action_space
        super().__init__(env_spec(config.id, obs, action), num_envs)
        self._env: Any = env
        self._adapt_obs, self._adapt_action = obs_adapter(obs), action_adapter(action)
        self._seed: int | None = seed
        self._done = np.zeros(self.num_envs, np.bool_)
        self._actions: NDArray[Any] = np.empty(0)

    independent = False  # no implementation in gymnasium 1.4 can reset some copies and leave the others

    def reset(self, seed: EnvSeeds = None, options: dict[str, Any] | None = None, only: Only = None) -> None:
        del only  # masks are refused before
        obs, self.infos = self._env.reset(seed=self._seed if seed is None else seed, options=options)
        self._seed = None
        self._done[:] = False
        self.fill_first(self._adapt_obs(obs))

    def begin_step(self, actions: NDArray[Any]) -> None:
        self._actions = self._adapt_action(actions)

    def finish_step(self) -> None:
        obs, reward, terminated, truncated, self.infos = self._env.step(self._actions)
        first, self._done = self._done, terminated | truncated
        self.episodes = self.statistics.update(np.where(first, 0, reward), first, self._done)
        self.fill(self._adapt_obs(obs), reward, terminated, truncated, first)

    def close(self) -> None:
        with contextlib.suppress(Exception):  # foreign code, and nothing depends on it
            self._env.close()


def has_native(env_id: str) -> bool:
    """Whether gymnasium has a vectorised implementation of an id with our autoreset rule.

    Raises:
      EnvError: its package is not installed.
      gymnasium.error.Error: the id is unknown.
    """
    import gymnasium
    from gymnasium.envs.registration import load_env_creator
    from gymnasium.vector import AutoresetMode, VectorEnv

    entry_point: Any = gymnasium.spec(env_id).vector_entry_point
    with contained(f"env.id {env_id!r} cannot be made"):
        creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    if not (isinstance(creator, type) and issubclass(creator, VectorEnv)):
        return False
    return bool(creator.metadata.get("autoreset_mode") is AutoresetMode.NEXT_STEP)
