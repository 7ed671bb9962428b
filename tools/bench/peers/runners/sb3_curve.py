"""Stable-Baselines3's SAC or TD3 on one environment: a learning curve in the columns of our `metrics.csv`.

~/.cache/zerobeast-peers/sb3/bin/python sb3_curve.py --algo sac --steps 1000000 --seed 1 --out sac-1.csv
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from stable_baselines3 import SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise

#: as our presets; the rest are the package's defaults
SETTINGS = {"learning_starts": 10_000, "batch_size": 256, "policy_kwargs": {"net_arch": [256, 256]}}


class Curve(BaseCallback):
    """Writes a row every so many agent steps: the mean return of the last 100 episodes, of the policy that explores."""

    def __init__(self, out: Path, every: int) -> None:
        super().__init__()
        self._out, self._every = out, every

    def _on_training_start(self) -> None:
        self._out.write_text("agent_steps,mean_return_100\n")

    def _on_step(self) -> bool:
        episodes = self.model.ep_info_buffer
        if self.num_timesteps % self._every == 0 and episodes:
            with self._out.open("a", newline="") as file:
                csv.writer(file).writerow([self.num_timesteps, np.mean([each["r"] for each in episodes])])
        return True


def main() -> None:
    """Train for so many steps."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--algo", choices=["sac", "td3"], required=True)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--steps", type=int, required=True, help="agent steps")
    parser.add_argument("--every", type=int, default=1_000, help="agent steps from row to row")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    algorithm = {"sac": SAC, "td3": TD3}[options.algo]
    envs = make_vec_env(options.env, n_envs=1, seed=options.seed)
    zero = np.zeros(envs.action_space.shape)
    noise = NormalActionNoise(zero, zero + 0.1) if options.algo == "td3" else None  # the package has none by itself
    model = algorithm("MlpPolicy", envs, action_noise=noise, device="cpu", seed=options.seed, **SETTINGS)
    model.learn(options.steps, callback=Curve(options.out, options.every))


if __name__ == "__main__":
    main()
