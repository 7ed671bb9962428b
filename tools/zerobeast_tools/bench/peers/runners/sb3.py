"""Stable-Baselines3, everything in one process: A2C or DQN on Pong, or SAC on HalfCheetah, by the first argument."""

from __future__ import annotations

import sys

import ale_py
import gymnasium
import stable_baselines3
from meter import Meter  # beside this script
from stable_baselines3 import A2C, DQN, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

NEVER = 10**9  #: agent steps; the meter ends the training
NUM_ENVS = 8  #: of DQN and SAC
LEARNING_STARTS = 1_000  #: agent steps before their first update


class RateCallback(BaseCallback):
    """Reports each finished update to the meter."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter
        self._over = False

    def _on_rollout_start(self) -> None:  # agent steps: the environment itself skips frames
        self._over = self._meter.saw(max(0, self.num_timesteps - getattr(self.model, "learning_starts", 0)))

    def _on_step(self) -> bool:
        return not self._over


def pong(num_envs: int) -> VecFrameStack:
    """Games with four frames stacked."""
    gymnasium.register_envs(ale_py)
    envs = make_atari_env("PongNoFrameskip-v4", n_envs=num_envs, seed=0, vec_env_cls=DummyVecEnv)
    return VecFrameStack(envs, n_stack=4)


def a2c() -> A2C:
    """One update for every five steps of all environments."""
    return A2C("CnnPolicy", pong(16), device="cpu", seed=0)


def dqn() -> DQN:
    """One update of 32 samples for every four agent steps."""
    return DQN(
        "CnnPolicy",
        pong(NUM_ENVS),
        batch_size=32,
        train_freq=1,
        gradient_steps=2,  # for each step of all environments
        learning_starts=LEARNING_STARTS,
        buffer_size=20_000,
        optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False},  # the two exclude one another
        exploration_fraction=LEARNING_STARTS / NEVER,  # most steps of a long run need inference
        exploration_final_eps=0.01,
        device="cpu",
        seed=0,
    )


def sac() -> SAC:
    """One update of 256 samples for every agent step."""
    return SAC(
        "MlpPolicy",
        make_vec_env("HalfCheetah-v5", n_envs=NUM_ENVS, seed=0, vec_env_cls=DummyVecEnv),
        batch_size=256,
        train_freq=1,
        gradient_steps=NUM_ENVS,
        learning_starts=LEARNING_STARTS,
        buffer_size=100_000,
        policy_kwargs={"net_arch": [256, 256]},
        device="cpu",
        seed=0,
    )


def main() -> None:
    """Train until the measurement is over."""
    make = {"a2c": a2c, "dqn": dqn, "sac": sac}[sys.argv.pop(1)]
    meter = Meter.from_flags()
    make().learn(total_timesteps=NEVER, callback=RateCallback(meter))
    meter.report(stable_baselines3.__version__)


if __name__ == "__main__":
    main()
