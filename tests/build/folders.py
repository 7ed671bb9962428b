"""Folders of runs as they are left, with the results or the policy that a test wants."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from zerobeast.common.config.load import dump, load_config
from zerobeast.common.files import evaluations, run_files
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.services.learner.checkpoint import Checkpoints
from zerobeast.services.learner.update import Trainer

HEADER = "elapsed_s,agent_steps,env_frames,mean_return_100"


def save_run(
    root: Path,
    name: str,
    trained: Mapping[int, Any] | None = None,
    evaluated: Mapping[int, float] | None = None,
    algo: str = "ppo",
    env: str = "CartPole-v1",
    seed: int = 1,
    **settings: Any,
) -> Path:
    """A run with mean returns by agent steps, one of which take a tenth of a second."""
    folder = root / name
    folder.mkdir(parents=True)
    tree = {"name": name, "root": str(root), "seed": seed, "total_steps": 400, "algo": algo, "env": {"id": env}}
    (folder / "config.yaml").write_text(yaml.safe_dump(tree | settings))
    if trained is not None:
        rows = [f"{steps / 10},{steps},{4 * steps},{value}" for steps, value in trained.items()]
        (folder / "metrics.csv").write_text("\n".join([HEADER, *rows, ""]))
    if evaluated is not None:
        evaluations.write_evaluations(folder, [evaluation(steps, value, env) for steps, value in evaluated.items()])
    return folder


def evaluation(steps: int, value: float, env: str) -> dict[str, Any]:
    about = {"agent_steps": steps, "env_frames": 4 * steps, "elapsed_s": steps / 10, "env": env, "actions": "greedy"}
    return {**about, "episodes": 2, "mean_return": value, "returns": [value - 1, value + 1], "lengths": [9, 9]}


def seeds(root: Path, name: str, values: Sequence[Mapping[int, float]], **settings: Any) -> None:
    """Runs of seeds 1, 2, ... with these evaluations."""
    for seed, evaluated in enumerate(values, 1):
        save_run(root, f"{name}-seed{seed}", evaluated, evaluated, seed=seed, **settings)


def policy_run(root: Path, algo: str, env: EnvSpec, *flags: str) -> Path:
    """A run called `run` with the checkpoint of a learner before its first update."""
    given = ["--env", env.env_id, "--preset", "classic", "--algo", algo, "--name", "run", "--root", str(root)]
    config = load_config([*given, *flags], {})
    config.folder.mkdir(exist_ok=True, parents=True)
    (config.folder / run_files.CONFIG).write_text(dump(config))
    trainer = Trainer(config, torch.device("cpu"), env)
    Checkpoints(config.folder).save({**trainer.state(), "statistics": {}, "rollouts": {}})
    return config.folder
