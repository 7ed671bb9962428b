"""A saved policy plays as it was learned: without the exploration of training, unless that is asked for."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.algo_fakes import REACH
from zerobeast.clients.player import Player
from zerobeast.common.config.load import dump, load
from zerobeast.common.wire.records import step_record
from zerobeast.services.learner.checkpoint import Checkpoints
from zerobeast.services.learner.update import Trainer

N = 64


def run(folder: Path, algo: str) -> Path:
    """A run that has not ended its random first steps, whose policy wants the upper bound of every action."""
    flags = ["--env", REACH.env_id, "--preset", f"control-{algo}", "--algo", algo, "--name", "run"]
    config = load([*flags, "--root", str(folder), f"--{algo}.replay_size", "10000"], {})
    trainer = Trainer(config, torch.device("cpu"), REACH)
    with torch.no_grad():
        trainer.net.mlp.out.bias[: REACH.action.shape[0]] = 20.0
    (config.folder / "config.yaml").write_text(dump(config))
    Checkpoints(config.folder).save({**trainer.state(), "statistics": {}, "rollouts": {}})
    return config.folder


@pytest.mark.parametrize(("algo", "greedy", "wanted"), [("td3", True, 1.0), ("ddpg", True, 1.0), ("sac", False, 0.99)])
def test_neither_noise_nor_random_first_steps_are_played(
    tmp_path: Path, algo: str, *, greedy: bool, wanted: float
) -> None:
    player = Player(run(tmp_path, algo), REACH, N)
    assert player.greedy is greedy
    rows = np.zeros(N, step_record(REACH).dtype)
    high = np.array(REACH.action.high)
    assert (player.act(rows) >= wanted * high - (1 - wanted) * abs(high)).all()
