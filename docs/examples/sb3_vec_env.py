"""Environments of env-servers for stable-baselines3: its PPO on two env-servers.

python docs/examples/sb3_vec_env.py tcp://10.0.0.7:5550 tcp://10.0.0.8:5550
"""

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

import zerobeast


class VecEnvOf(VecEnv):  # type: ignore[misc]
    """A gymnasium vector environment with SAME_STEP autoreset, as a VecEnv of stable-baselines3."""

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP, "an end and the next start share a step"
        self.envs, self.render_mode, self._actions = envs, envs.render_mode, np.zeros(0)
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> Any:
        seeds, self._seeds = self._seeds, [None] * self.num_envs
        return self.envs.reset(seed=seeds)[0]

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        obs, rewards, terminated, truncated, found = self.envs.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(terminated | truncated):
            infos[i] = {"terminal_observation": found["final_obs"][i], "TimeLimit.truncated": not terminated[i]}
        return obs, rewards.astype(np.float32), terminated | truncated, infos

    def close(self) -> None:
        self.envs.close()

    def get_attr(self, attr_name: str, indices: int | Iterable[int] | None = None) -> list[Any]:
        return [self.envs.get_attr(attr_name)[i] for i in self._get_indices(indices)]  # type: ignore[attr-defined]

    def set_attr(self, attr_name: str, value: Any, indices: int | Iterable[int] | None = None) -> None:
        self.envs.set_attr(attr_name, value)  # type: ignore[attr-defined]

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        return list(self.envs.call(method_name, *args, **kwargs))  # type: ignore[attr-defined]

    def env_is_wrapped(self, wrapper_class: Any, indices: int | Iterable[int] | None = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]


def train(endpoints: list[str], total_steps: int = 50_000) -> float:
    """Train PPO on CartPole; returns the mean return of the newest 100 episodes."""
    envs = VecMonitor(VecEnvOf(zerobeast.ClusterVectorEnv(endpoints, "CartPole-v1", 8, autoreset_mode="SAME_STEP")))
    model = PPO("MlpPolicy", envs, n_steps=128, batch_size=256, learning_rate=1e-3, seed=1, device="cpu")
    model.learn(total_steps)
    envs.close()
    return float(np.mean([episode["r"] for episode in model.ep_info_buffer]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        print(train(sys.argv[1:]))
    except zerobeast.BeastError as error:
        sys.exit(str(error))
