"""Stable-Baselines3: DQN, one update of 32 samples for every four agent steps, everything in one process."""

from __future__ import annotations

import ale_py
import gymnasium
import stable_baselines3
from meter import Meter  # beside this script
from sb3_meter import NEVER, RateCallback  # beside this script
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

NUM_ENVS = 8
UPDATES = 2  #: for each step of all environments
LEARNING_STARTS = 1_000  #: agent steps


def main() -> None:
    """Train until the measurement is over."""
    meter = Meter.from_flags()
    gymnasium.register_envs(ale_py)
    envs = make_atari_env("PongNoFrameskip-v4", n_envs=NUM_ENVS, seed=0, vec_env_cls=DummyVecEnv)
    model = DQN(
        "CnnPolicy",
        VecFrameStack(envs, n_stack=4),
        batch_size=32,
        train_freq=1,
        gradient_steps=UPDATES,
        learning_starts=LEARNING_STARTS,
        buffer_size=20_000,
        optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False},  # the two exclude one another
        exploration_fraction=LEARNING_STARTS / NEVER,  # most steps of a long run need inference
        exploration_final_eps=0.01,
        device="cpu",
        seed=0,
    )
    model.learn(total_timesteps=NEVER, callback=RateCallback(meter, LEARNING_STARTS))
    meter.report(stable_baselines3.__version__)


if __name__ == "__main__":
    main()
