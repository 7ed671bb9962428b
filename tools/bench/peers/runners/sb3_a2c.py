"""Stable-Baselines3: A2C, one update for every five steps of all environments, everything in one process."""

from __future__ import annotations

import ale_py
import gymnasium
import stable_baselines3
from meter import Meter  # beside this script
from sb3_meter import NEVER, RateCallback  # beside this script
from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

NUM_ENVS = 16


def main() -> None:
    """Train until the measurement is over."""
    meter = Meter.from_flags()
    gymnasium.register_envs(ale_py)
    envs = make_atari_env("PongNoFrameskip-v4", n_envs=NUM_ENVS, seed=0, vec_env_cls=DummyVecEnv)
    model = A2C("CnnPolicy", VecFrameStack(envs, n_stack=4), device="cpu", seed=0)
    model.learn(total_timesteps=NEVER, callback=RateCallback(meter))
    meter.report(stable_baselines3.__version__)


if __name__ == "__main__":
    main()
