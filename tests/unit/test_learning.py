"""Every algorithm learns a way of several steps, in one process, where services would add nothing but time.

That each learns the reward of one step is a rule of `zerobeast.testing.algorithm`; that a run of processes learns is
seen once per family in tests/e2e.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.build import tasks
from tests.build.batches import ALGORITHMS
from zerobeast.common.settings.tree import RunConfig
from zerobeast.rl.replay_settings import BoxSettings
from zerobeast_tools.bench.in_process import InProcess

T, B = 8, 16
MOST_BATCHES, LAST = 60, 5
BEST = 1 / (tasks.PLACES + 1)  #: reward of each row: an episode's last observation and the next first one are two
#: settings, as far as an algorithm has them, with which it learns from few steps
QUICK = {
    "learning_rate": 0.01,
    "schedule": "constant",
    "optimizer": "adam",
    "epsilon": 1e-5,
    "discount": 0.9,
    "entropy_cost": 0.001,
    "epochs": 4,
    "minibatches": 2,
    "batches": 2,
    "uses": 2,
    "target_period": 20,
    "target_rate": 0.05,
    "batch_size": 32,
    "replay_size": 8000,
    "replay_min_size": 500,
    "random_steps": 1500,
    "exploration_steps": 3000,
    "burn_in": T,
    "sequence_length": T,
    "head_size": 16,
}
#: what suits some algorithms: few steps from many transitions, and the values that there are
FEW_STEPS = {"batch_size": 128, "target_period": 5, "exploration_steps": 1500}
ATOMS = {"v_min": -1.0, "v_max": 1.0, "atoms": 21}
OWN: dict[str, dict[str, Any]] = {
    "vmpo": {"target_period": 2},
    "dqn": FEW_STEPS,
    "c51": FEW_STEPS | ATOMS,
    "rainbow": FEW_STEPS | ATOMS,
    "r2d2": {"batch_size": 8},
    "td3": {"learning_rate": 0.003, "samples_per_insert": 4.0},
    "sac": {"temperature": 0.05},
}


def config_of(name: str, root: Path) -> RunConfig:
    section = ALGORITHMS[name]
    quick = {key: value for key, value in QUICK.items() if key in section.model_fields}
    env = "RealCorridor-v0" if issubclass(section, BoxSettings) else "Corridor-v0"
    tree = {
        "algo": name,
        "root": str(root),
        "env": {"id": f"{tasks.__name__}:{env}"},
        "net": {"hidden_size": 32},
        "learner": {"unroll_length": T, "batch_size": B, "device": "cpu", "precision": "float32"},
        name: {**quick, **OWN.get(name, {})},
    }
    return RunConfig.model_validate(tree)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_learns_a_way_of_several_steps(name: str, tmp_path: Path) -> None:
    earned: list[float] = []
    with InProcess(config_of(name, tmp_path), lag=1) as run:
        while sum(earned[-LAST:]) < 0.75 * BEST * LAST and len(earned) < MOST_BATCHES:
            rows = run.collect()
            earned.append(float(rows["reward"][:, 1:].mean()))
            run.learn(rows)
    assert len(earned) < MOST_BATCHES, f"of {BEST:.2f} for each step it earned {[round(each, 2) for each in earned]}"
