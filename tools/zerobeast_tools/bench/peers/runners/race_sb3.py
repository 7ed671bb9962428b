"""Stable-Baselines3 with the settings of the RL Zoo, whose schedules end after its number of steps.

Source: hyperparams/ppo.yml and hyperparams/sac.yml of DLR-RM/rl-baselines3-zoo at commit 00128b5d46d4, where
LunarLander has version 2 and HalfCheetah version 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import ale_py
import gymnasium
import stable_baselines3
from referee import Referee, parse_terms  # beside this script
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecFrameStack


def falling(start: float) -> Callable[[float], float]:
    """A schedule from `start` to 0."""
    return lambda left: left * start


class Recipe(NamedTuple):
    """How the zoo trains on an environment."""

    algorithm: Any
    policy: str
    num_envs: int
    steps: int
    settings: dict[str, Any]


RECIPES = {
    "CartPole-v1": Recipe(
        *(PPO, "MlpPolicy", 8, 100_000),
        {"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0}
        | {"learning_rate": falling(0.001), "clip_range": falling(0.2)},
    ),
    "LunarLander-v3": Recipe(
        *(PPO, "MlpPolicy", 16, 1_000_000),
        {"n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01},
    ),
    "PongNoFrameskip-v4": Recipe(
        *(PPO, "CnnPolicy", 8, 10_000_000),
        {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "vf_coef": 0.5, "ent_coef": 0.01}
        | {"learning_rate": falling(2.5e-4), "clip_range": falling(0.1)},
    ),
    "HalfCheetah-v5": Recipe(SAC, "MlpPolicy", 1, 1_000_000, {"learning_starts": 10_000}),
}


def make_envs(env: str, number: int, seed: int) -> Any:
    """Environments in this process, with the preprocessing of the zoo."""
    if "NoFrameskip" not in env:
        return make_vec_env(env, n_envs=number, seed=seed)
    return VecFrameStack(make_atari_env(env, n_envs=number, seed=seed), n_stack=4)


class Judged(BaseCallback):
    """Reports every step to the referee."""

    def __init__(self, referee: Referee) -> None:
        super().__init__()
        self._referee, self._terms = referee, referee.terms
        self._envs = make_envs(self._terms.env, 1, self._terms.eval_seed)

    def _play(self) -> float:
        self._envs.seed(self._terms.eval_seed)
        return float(evaluate_policy(self.model, self._envs, self._terms.episodes)[0])

    def _on_step(self) -> bool:
        return not self._referee.saw(self.num_timesteps, self._play)


def main() -> None:
    """Train until the race is over."""
    gymnasium.register_envs(ale_py)
    referee = Referee(parse_terms())
    recipe, seed = RECIPES[referee.terms.env], referee.terms.seed
    envs = make_envs(referee.terms.env, recipe.num_envs, seed)
    model = recipe.algorithm(recipe.policy, envs, device="cpu", seed=seed, **recipe.settings)
    model.learn(recipe.steps, callback=Judged(referee))
    referee.report(stable_baselines3.__version__)


if __name__ == "__main__":
    main()
