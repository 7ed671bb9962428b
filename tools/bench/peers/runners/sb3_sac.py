"""Stable-Baselines3: SAC, one update of 256 samples for every agent step, everything in one process."""

from __future__ import annotations

import stable_baselines3
from meter import Meter  # beside this script
from sb3_meter import NEVER, RateCallback  # beside this script
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

NUM_ENVS = 8
LEARNING_STARTS = 1_000  #: agent steps


def main() -> None:
    """Train until the measurement is over."""
    meter = Meter.from_flags()
    envs = make_vec_env("HalfCheetah-v5", n_envs=NUM_ENVS, seed=0, vec_env_cls=DummyVecEnv)
    model = SAC(
        "MlpPolicy",
        envs,
        batch_size=256,
        train_freq=1,
        gradient_steps=NUM_ENVS,
        learning_starts=LEARNING_STARTS,
        buffer_size=100_000,
        policy_kwargs={"net_arch": [256, 256]},
        device="cpu",
        seed=0,
    )
    model.learn(total_timesteps=NEVER, callback=RateCallback(meter, LEARNING_STARTS))
    meter.report(stable_baselines3.__version__)


if __name__ == "__main__":
    main()
