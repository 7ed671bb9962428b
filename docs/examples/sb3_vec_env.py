"""Environments of env-servers for stable-baselines3: its PPO on two env-servers.

python docs/examples/sb3_vec_env.py tcp://10.0.0.7:5550 tcp://10.0.0.8:5550
"""

import sys

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecMonitor

import zerobeast
from zerobeast.clients.sb3 import SB3VecEnv


def train(endpoints: list[str], total_steps: int = 50_000) -> float:
    """Train PPO on CartPole; returns the mean return of the newest 100 episodes."""
    envs = VecMonitor(SB3VecEnv(zerobeast.ClusterVectorEnv(endpoints, "CartPole-v1", 8, autoreset_mode="SAME_STEP")))
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
