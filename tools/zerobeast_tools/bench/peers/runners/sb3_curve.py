"""Stable-Baselines3's SAC or TD3 on one environment: curves of training and of greedy evaluations in a folder that
`beast plot` and `beast compare` read.

~/.cache/zerobeast-peers/sb3/bin/python sb3_curve.py --algo sac --steps 1000000 --seed 1 --out runs/sb3-sac-1

The model and its replay are saved in the same folder every so often: the same command again goes on from there, with an
episode begun anew.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from pathlib import Path

import numpy as np
from stable_baselines3 import SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise

#: as in our presets; the rest are the package's defaults
SETTINGS = {"learning_starts": 10_000, "batch_size": 256, "policy_kwargs": {"net_arch": [256, 256]}}


SAVED_EVERY = 50_000  #: agent steps
HEADER = "elapsed_s,agent_steps,mean_return_100"
EVALUATION = "elapsed_s,agent_steps,actions,mean_return,returns,lengths"


class Curve(BaseCallback):
    """Writes a row every `every` agent steps: the mean return of the exploring policy's last 100 episodes.

    And, every `evaluate_every` steps, one of 10 episodes with greedy actions. Their time counts as the run's.
    """

    def __init__(self, out: Path, env: str, every: int, evaluate_every: int) -> None:
        super().__init__()
        self._out, self._every, self._begun = out, every, time.monotonic()
        self._evaluate_every, self._envs = evaluate_every, make_vec_env(env, n_envs=1, seed=1_000_000)

    def _on_training_start(self) -> None:
        """Keep the rows up to the step that was saved."""
        for name, header in (("metrics.csv", HEADER), ("evaluations.csv", EVALUATION)):
            file = self._out / name
            lines = file.read_text().splitlines()[1:] if self.num_timesteps else []
            kept = [line for line in lines if int(line.split(",")[1]) <= self.num_timesteps]
            file.write_text("\n".join([header, *kept, ""]))
            if name == "metrics.csv" and kept:
                self._begun -= float(kept[-1].split(",")[0])

    def _on_step(self) -> bool:
        if self.num_timesteps % self._every == 0 and (episodes := self.model.ep_info_buffer):
            self._write("metrics.csv", np.mean([each["r"] for each in episodes]))
        if self.num_timesteps % self._evaluate_every == 0:
            returns, lengths = evaluate_policy(self.model, self._envs, 10, return_episode_rewards=True)
            each = (" ".join(map(str, values)) for values in (returns, lengths))
            self._write("evaluations.csv", "greedy", np.mean(returns), *each)
        if self.num_timesteps % SAVED_EVERY == 0:
            replay, model = saved_files(self._out)
            self.model.save_replay_buffer(replay)
            self.model.save(model)
        return True

    def _write(self, name: str, *cells: object) -> None:
        with (self._out / name).open("a", newline="") as file:
            csv.writer(file).writerow([time.monotonic() - self._begun, self.num_timesteps, *cells])


def saved_files(out: Path) -> tuple[Path, Path]:
    """Paths of the saved replay and model in a folder."""
    return out / "replay.pkl", out / "model.zip"


def main() -> None:
    """Train for `--steps` agent steps."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--algo", choices=["sac", "td3"], required=True)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--steps", type=int, required=True, help="agent steps")
    parser.add_argument("--every", type=int, default=1_000, help="agent steps from row to row")
    parser.add_argument("--evaluate_every", type=int, default=15_000, help="agent steps between greedy evaluations")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder")
    options = parser.parse_args()
    algorithm = {"sac": SAC, "td3": TD3}[options.algo]
    envs = make_vec_env(options.env, n_envs=1, seed=options.seed)
    zero = np.zeros(envs.action_space.shape)
    noise = NormalActionNoise(zero, zero + 0.1) if options.algo == "td3" else None  # the package has none by default
    replay, last = saved_files(options.out)
    if last.exists():
        model = algorithm.load(last, envs, device="cpu")
        model.load_replay_buffer(replay)
    else:
        model = algorithm("MlpPolicy", envs, action_noise=noise, device="cpu", seed=options.seed, **SETTINGS)
    settings = {"env": options.env, "algo": f"Stable-Baselines3's {algorithm.__name__}", "seed": options.seed}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "config.yaml").write_text(json.dumps(settings))  # JSON is YAML
    curve = Curve(options.out, options.env, options.every, options.evaluate_every)
    model.learn(options.steps - model.num_timesteps, callback=curve, reset_num_timesteps=False)


if __name__ == "__main__":
    main()
