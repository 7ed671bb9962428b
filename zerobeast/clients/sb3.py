"""Environments of env-servers for stable-baselines3, which the extra zerobeast[sb3] installs.

envs = SB3VecEnv(zerobeast.RemoteVectorEnv("tcp://host:5550", "CartPole-v1", 8, autoreset_mode="SAME_STEP"))
stable_baselines3.PPO("MlpPolicy", envs).learn(50_000)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3.common.vec_env import VecEnv

from zerobeast.common.errors import ConfigError
from zerobeast.common.wire.spaces import count_from_zero
from zerobeast.services.envserver.spaces import gym_space, space_of


class SB3VecEnv(VecEnv):  # type: ignore[misc]
    """A VecEnv for stable-baselines3.

    Args:
      envs: a gymnasium vector environment, such as a `ClusterVectorEnv`, with `autoreset_mode="SAME_STEP"`.

    Raises:
      ConfigError: its autoreset mode is another.
    """

    _seeds: list[Any]  #: of the next reset

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        if (mode := envs.metadata.get("autoreset_mode")) is not AutoresetMode.SAME_STEP:
            raise ConfigError(
                argument="autoreset_mode",
                value=getattr(mode, "name", mode),
                expected="SAME_STEP: a VecEnv resets within the last step of an episode",
            )
        self.envs: Any = envs
        self.render_mode, self._actions = envs.render_mode, np.zeros(0)
        space = envs.single_action_space
        self._start = getattr(space, "start", 0)  # from which stable-baselines3 does not count
        if np.any(self._start):
            space = gym_space(count_from_zero(space_of(space, "action space")))
        super().__init__(envs.num_envs, envs.single_observation_space, space)

    def reset(self) -> Any:
        seeds, self._seeds = self._seeds, [None] * self.num_envs
        return self.envs.reset(seed=seeds)[0]

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        obs, rewards, terminated, truncated, found = self.envs.step(
            self._actions + self._start if np.any(self._start) else self._actions
        )
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(terminated | truncated):
            infos[i] = {"terminal_observation": found["final_obs"][i], "TimeLimit.truncated": not terminated[i]}
        return obs, rewards.astype(np.float32), terminated | truncated, infos

    def close(self) -> None:
        self.envs.close()

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        return [self.envs.get_attr(attr_name)[i] for i in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:  # noqa: ARG002 - of all
        self.envs.set_attr(attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:  # noqa: ARG002
        return list(self.envs.call(method_name, *args, **kwargs))

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:  # noqa: ARG002 - none is
        return [False for _ in self._get_indices(indices)]
