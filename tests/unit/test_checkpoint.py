"""Checkpoints: whole or not at all, and what each kind of bad file is called."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.learner_fakes import ENV, B, rollout_rows, run_config
from zerobeast.common.config.tree import RunConfig
from zerobeast.common.errors import CheckpointError
from zerobeast.services.learner.checkpoint import CHECKPOINT_FORMAT, Checkpoints, load_checkpoint
from zerobeast.services.learner.update import Trainer

pytestmark = pytest.mark.unit

CPU = torch.device("cpu")


def saved(folder: Path, trainer: Trainer, **changes: Any) -> Path:
    checkpoints = Checkpoints(folder)
    checkpoints.save({**trainer.state(), "statistics": {}, "rollouts": {}, **changes})
    return checkpoints.path


def trained(config: RunConfig, seeds: range) -> Trainer:
    trainer = Trainer(config, CPU, ENV)
    for seed in seeds:
        trainer.update(rollout_rows(B, seed))
    return trainer


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


@pytest.mark.parametrize("optimizer", ["rmsprop", "rmsprop_tf", "adam"])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path, optimizer: str) -> None:
    raw = run_config(tmp_path).model_dump()
    config = RunConfig.model_validate({**raw, "impala": {"optimizer": optimizer, "momentum": 0.5}})
    whole = trained(config, range(6))
    path = saved(tmp_path, trained(config, range(3)))
    torch.rand(17)  # what a new process draws before it resumes must not matter
    resumed = Trainer(config, CPU, ENV)
    state = load_checkpoint(path)
    assert state is not None
    resumed.load(path, state)
    rates = [resumed.update(rollout_rows(B, seed)).learned.learning_rate for seed in range(3, 6)]
    assert rates == [config.impala.learning_rate * (1 - steps / 160) for steps in (60, 80, 100)]
    one, two = whole.state(), resumed.state()
    one.pop("rng")
    two.pop("rng")
    assert same(one, two)
    assert resumed.counters.agent_steps == 120
    assert resumed.counters.updates == 6


@pytest.mark.parametrize("use_lstm", [False, True])
@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("impala", {}),
        ("impala", {"batches": 3, "uses": 4, "entropy_target": 0.5}),
        ("a2c", {"normalize_advantages": True}),
        ("ppo", {"epochs": 2, "minibatches": 3, "normalize_returns": True, "target_kl": 0.5}),
        ("vmpo", {"target_period": 2, "popart": True}),
        ("impact", {"batches": 3, "uses": 4, "kl_cost": 1.0, "kl_target": 1e-6}),
    ],
)
def test_every_algorithm_goes_on_bit_for_bit(
    tmp_path: Path, algo: str, settings: dict[str, Any], *, use_lstm: bool
) -> None:
    raw = run_config(tmp_path).model_dump()
    net = {"torso": "mlp", "use_lstm": use_lstm, "lstm_size": 8, "normalize_obs": True}
    config = RunConfig.model_validate({**raw, "algo": algo, algo: settings, "net": net})

    def train(trainer: Trainer, seeds: range) -> Trainer:
        for seed in seeds:
            trainer.update(rollout_rows(B, seed, policy=trainer.policy))
        return trainer

    whole = train(Trainer(config, CPU, ENV), range(6)).state()
    path = saved(tmp_path, train(Trainer(config, CPU, ENV), range(3)))
    torch.rand(17)
    resumed = Trainer(config, CPU, ENV)
    state = load_checkpoint(path)
    assert state is not None
    resumed.load(path, state)
    assert same(whole, train(resumed, range(3, 6)).state()), "random numbers included"


def test_random_numbers_continue_where_the_checkpoint_stands(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    path = saved(tmp_path, trained(config, range(1)))
    expected = torch.rand(3)
    resumed = Trainer(config, CPU, ENV)
    state = load_checkpoint(path)
    assert state is not None
    resumed.load(path, state)
    assert torch.equal(torch.rand(3), expected)


def test_there_is_nothing_to_load_where_there_is_no_file(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "checkpoint.pt") is None


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_named_and_left_alone(tmp_path: Path, kept: float) -> None:
    path = saved(tmp_path, trained(run_config(tmp_path), range(1)))
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(
        CheckpointError, match=r"checkpoint.pt: not a whole checkpoint .*: truncated, or written by another"
    ):
        load_checkpoint(path)
    assert len(path.read_bytes()) == int(kept * len(content))


def test_a_flipped_bit_in_the_weights_is_noticed(tmp_path: Path) -> None:
    path = saved(tmp_path, trained(run_config(tmp_path), range(1)), padding=torch.ones(10_000))
    content = bytearray(path.read_bytes())
    content[content.rindex(torch.ones(100).numpy().tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        load_checkpoint(path)


class Trap:
    """Something that only pickle can restore, by running code."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("trap-sprung",)


def test_a_file_that_wants_to_run_code_is_refused_unrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"format": CHECKPOINT_FORMAT, "model": Trap()}, tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        load_checkpoint(tmp_path / "c.pt")
    assert not (tmp_path / "trap-sprung").exists()


def test_a_checkpoint_holds_plain_values_only(tmp_path: Path) -> None:
    def kinds(value: Any) -> set[type]:
        if isinstance(value, dict):
            return set().union(*(kinds(key) | kinds(entry) for key, entry in value.items()))
        if isinstance(value, list | tuple):
            return set().union(*map(kinds, value))
        return {type(value)}

    state = trained(run_config(tmp_path), range(2)).state()
    assert kinds(state) <= {int, float, str, bool, type(None), torch.Tensor}


def test_other_formats_and_foreign_files_are_told_apart(tmp_path: Path) -> None:
    trainer = trained(run_config(tmp_path), range(0))
    with pytest.raises(CheckpointError, match="checkpoint format 3, this program reads 4"):
        load_checkpoint(saved(tmp_path, trainer, format=3))
    torch.save({"model_state_dict": {}}, tmp_path / "foreign.pt")
    with pytest.raises(CheckpointError, match="no entry 'format'"):
        load_checkpoint(tmp_path / "foreign.pt")
    torch.save({"format": CHECKPOINT_FORMAT, "model": {}}, tmp_path / "part.pt")
    with pytest.raises(CheckpointError, match="no entry 'config'"):
        load_checkpoint(tmp_path / "part.pt")


def test_another_architecture_is_named_by_its_first_parameter(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    path = saved(tmp_path, trained(config, range(1)))
    state = load_checkpoint(path)
    assert state is not None
    wider = RunConfig.model_validate({**config.model_dump(), "net": {"torso": "mlp", "hidden_size": 32}})
    with pytest.raises(
        CheckpointError, match=r"parameter '.*' is of shape \[16.*\] in it, of shape \[32.*\] in this run"
    ):
        Trainer(wider, CPU, ENV).load(path, state)
    recurrent = RunConfig.model_validate({**config.model_dump(), "net": {"torso": "mlp", "use_lstm": True}})
    with pytest.raises(CheckpointError, match="another architecture"):
        Trainer(recurrent, CPU, ENV).load(path, state)


def test_another_optimiser_is_named(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    path = saved(tmp_path, trained(config, range(1)))
    state = load_checkpoint(path)
    assert state is not None
    adam = RunConfig.model_validate({**config.model_dump(), "impala": {"optimizer": "adam"}})
    with pytest.raises(CheckpointError, match="made with optimizer RMSprop, this run uses Adam"):
        Trainer(adam, CPU, ENV).load(path, state)


def test_unreadable_entries_are_a_sentence(tmp_path: Path) -> None:
    config = run_config(tmp_path)
    path = saved(tmp_path, trained(config, range(1)), counters={"steps": 3})
    state = load_checkpoint(path)
    assert state is not None
    with pytest.raises(CheckpointError, match="entries are unreadable"):
        Trainer(config, CPU, ENV).load(path, state)


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = saved(tmp_path, trained(run_config(tmp_path), range(1)))
    content = path.read_bytes()
    (tmp_path / ".c.pt.new").mkdir()
    with pytest.raises(CheckpointError, match="cannot be written"):
        saved(path, trained(run_config(tmp_path), range(2)))
    assert path.read_bytes() == content
