"""Checkpoints: written whole or not at all, and how each kind of bad file is reported."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.build.learners import CPU, ENV, run_config, saved, state_in, trained
from zerobeast.common.errors import CheckpointError
from zerobeast.common.files import run_files
from zerobeast.common.settings.tree import RunConfig
from zerobeast.rl.nets.checkpoint import DamagedCheckpoint
from zerobeast.services.learner.checkpoint import CHECKPOINT_FORMAT, Checkpoints, load_checkpoint
from zerobeast.services.learner.update import Trainer
from zerobeast.testing.small_run import same


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return run_config(tmp_path)


@pytest.fixture
def path(tmp_path: Path, config: RunConfig) -> Path:
    """A checkpoint after one update."""
    return saved(tmp_path, trained(Trainer(config, CPU, ENV), range(1)))


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("impala", {}),
        ("impala", {"optimizer": "rmsprop", "momentum": 0.5}),
        ("impala", {"optimizer": "rmsprop_tf", "momentum": 0.5}),
        ("impala", {"batches": 3, "uses": 4, "entropy_target": 0.5, "replay_share": 0.5, "replay_rollouts": 6}),
        ("a2c", {"normalize_advantages": True}),
        ("ppo", {"epochs": 2, "minibatches": 3, "normalize_returns": True, "target_kl": 0.5}),
        ("vmpo", {"target_period": 2, "popart": True}),
        ("impact", {"batches": 3, "uses": 4, "kl_cost": 1.0, "kl_target": 1e-6}),
    ],
)
def test_every_algorithm_resumes_bit_for_bit(
    tmp_path: Path, config: RunConfig, algo: str, settings: dict[str, Any], *, core: str
) -> None:
    net = {"torso": "mlp", "core": core, "core_width": 8, "normalize_obs": True}
    common = config.model_dump()
    common.pop(config.section)
    config = RunConfig.model_validate({**common, "algo": algo, algo: settings, "net": net})
    whole = trained(Trainer(config, CPU, ENV), range(6)).state()
    path = saved(tmp_path, trained(Trainer(config, CPU, ENV), range(3)))
    torch.rand(17)  # what a new process draws before it resumes must not matter
    resumed = Trainer(config, CPU, ENV)
    resumed.load(path, state_in(path))
    assert same(whole, trained(resumed, range(3, 6)).state()), "random numbers included"
    assert (resumed.counters.agent_steps, resumed.counters.updates) == (120, 6)


@pytest.mark.parametrize("kept", [0.0, 0.99])
def test_a_truncated_file_is_named_and_left_alone_and_its_predecessor_is_loaded(path: Path, kept: float) -> None:
    content, state, checkpoints = path.read_bytes(), state_in(path), Checkpoints(path.parent)
    for _ in range(2):
        checkpoints.save(state)
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(DamagedCheckpoint):
        load_checkpoint(path)
    assert path.read_bytes() == content[: int(kept * len(content))]
    assert same(Checkpoints(path.parent).load(), load_checkpoint(path.with_name(run_files.PREVIOUS_CHECKPOINT)))
    path.with_name(run_files.PREVIOUS_CHECKPOINT).write_bytes(content[:100])
    with pytest.raises(CheckpointError):
        Checkpoints(path.parent).load()  # if nothing whole is left, nothing silently begins anew


def test_a_flipped_bit_in_the_weights_is_noticed(tmp_path: Path, config: RunConfig) -> None:
    path = saved(tmp_path, Trainer(config, CPU, ENV), padding=torch.ones(10_000))
    content = bytearray(path.read_bytes())
    content[content.rindex(torch.ones(100).numpy().tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedCheckpoint):
        load_checkpoint(path)


class Trap:
    """Something that only pickle can restore, by running code."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("trap-sprung",)


def test_a_file_that_would_run_code_is_refused_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"format": CHECKPOINT_FORMAT, "model": Trap()}, tmp_path / "c.pt")
    with pytest.raises(DamagedCheckpoint):
        load_checkpoint(tmp_path / "c.pt")
    assert not (tmp_path / "trap-sprung").exists()


@pytest.mark.parametrize("changes", [{"format": 3}, {"format": None}, {"config": None}, {"learning": []}], ids=str)
def test_other_formats_and_foreign_files_are_refused_and_are_not_taken_for_damaged(
    path: Path, changes: dict[str, Any]
) -> None:
    state = state_in(path) | changes
    torch.save({name: value for name, value in state.items() if value is not None}, path)
    with pytest.raises(CheckpointError) as refused:
        load_checkpoint(path)
    assert not isinstance(refused.value, DamagedCheckpoint)


@pytest.mark.parametrize("net", [{"hidden_size": 32}, {"core": "lstm"}])
def test_another_architecture_is_refused(path: Path, config: RunConfig, net: dict[str, Any]) -> None:
    other = RunConfig.model_validate({**config.model_dump(), "net": {"torso": "mlp", **net}})
    with pytest.raises(CheckpointError, match="body"):
        Trainer(other, CPU, ENV).load(path, state_in(path))
