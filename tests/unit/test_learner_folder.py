"""What a learner keeps of a run: rows, files of callers, and checkpoints from which all goes on bit for bit."""

import csv
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.build.learners import CPU, ENV, B, run_config, save_checkpoint, state_in, train_on_seeds
from tests.build.streams import ListedRun, training_run
from tests.helpers import no_file_longer_than
from zerobeast.common.config.load import load_config
from zerobeast.common.errors import CheckpointError, ConfigError, DiskError
from zerobeast.common.files import requests, run_files
from zerobeast.common.service.computation import Computation
from zerobeast.common.settings.tree import RunConfig
from zerobeast.rl.nets.checkpoint import DamagedCheckpoint
from zerobeast.services.learner.checkpoint import CHECKPOINT_FORMAT, Checkpoints, load_checkpoint
from zerobeast.services.learner.folder import UNWRITTEN_PAGE, RunFolder
from zerobeast.services.learner.ledger import SavedLedger
from zerobeast.services.learner.recorder import COLUMNS, Record, Recorder
from zerobeast.services.learner.update import Trainer
from zerobeast.testing.small_run import are_same

LAGS = np.array([3, 0, 5])


def record(steps: int, losses: dict[str, Any] | None = None, curves: Any = None, **values: float | None) -> Record:
    row = {**dict.fromkeys(COLUMNS), "agent_steps": steps, "env_frames": 4 * steps, **values}
    return Record(row, losses or {}, LAGS, curves or {}, ())


def write(folder: Path, resumed_at: int, *records: Record) -> None:
    recorder = Recorder(folder, resumed_at)
    for each in records:
        recorder.write(each)
    recorder.close()


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def steps(folder: Path) -> list[str]:
    return [row["agent_steps"] for row in table(folder)]


def events(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"histograms": 0})
    found.Reload()
    return found


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in events(folder).Scalars(name)]


def test_a_row_has_its_columns_and_what_is_unknown_is_an_empty_cell_and_no_point(tmp_path: Path) -> None:
    values = {"mean_return_100": 1.5, "replay_starved_s": 2.5, "loss": float("nan"), "grad_norm": float("inf")}
    curves = {"sync/lag/0": 2.5, "sync/lag/1": None}
    write(tmp_path, 0, *(record(steps, {"pg_loss": 0.25, "x": None}, curves, **values) for steps in (100, 200)))
    first, _ = table(tmp_path)
    assert list(first)[: len(COLUMNS)] == list(COLUMNS)
    known = {"agent_steps": "100", "env_frames": "400", "mean_return_100": "1.5", "pg_loss": "0.25"}
    assert {name: value for name, value in first.items() if value} == known | {"replay_starved_s": "2.5"}
    assert curve(tmp_path, "charts/episodic_return") == [(100, 1.5), (200, 1.5)]
    names = {"charts/episodic_return", "losses/pg_loss", "perf/replay_starved_s", "sync/lag/0"}
    assert set(events(tmp_path).Tags()["scalars"]) == names
    histogram = events(tmp_path).Histograms("perf/policy_lag")[0].histogram_value
    assert (histogram.num, histogram.sum, histogram.max) == (8.0, 10.0, 2.0)


@pytest.mark.parametrize("torn", ["", '300,"', "\x00\x00\x00"])
def test_a_resumed_run_appends_to_what_its_checkpoint_has_and_to_no_other_table(tmp_path: Path, torn: str) -> None:
    write(tmp_path, 0, *(record(each, mean_return_100=1.0) for each in (100, 200, 300)))
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write(torn)
    write(tmp_path, 200, record(250, mean_return_100=1.0))
    assert steps(tmp_path) == ["100", "200", "250"]
    assert (tmp_path / "metrics.csv").read_text().count("agent_steps,") == 1
    assert [step for step, _ in curve(tmp_path, "charts/episodic_return")] == [100, 200, 250]
    (tmp_path / "metrics.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError):
        Recorder(tmp_path, 0)
    assert (tmp_path / "metrics.csv").read_text() == "a,b\n1,2\n"


class Keeping:
    """What a run keeps in its folder, and the run."""

    def __init__(self, folder: Path, resources: ExitStack) -> None:
        config = run_config(folder.parent).model_copy(update={"name": folder.name})
        self.folder, self.kept = folder, RunFolder(config, resources, Computation(lambda: 0.0))
        actors = ListedRun({1: B}, batch=B, window=1)
        actors.start(1, SavedLedger())
        self.training = training_run(Trainer(config, torch.device("cpu"), ENV), actors.intake, lambda: 0.0)

    def record(self, steps: int, **losses: float) -> None:
        self.kept.record(self.training, record(steps, losses))

    def save(self, now: float) -> None:
        self.kept.checkpoint(self.training, now, last=True, finished=False)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Keeping]:
    with ExitStack() as resources:
        yield Keeping(tmp_path, resources)


def test_failed_writes_are_counted_logged_once_and_recover(run: Keeping, caplog: pytest.LogCaptureFixture) -> None:
    run.kept.begin(0)
    run.record(1, pg_loss=0.5)
    assert run.kept.report(5.0) == UNWRITTEN_PAGE
    with no_file_longer_than((run.folder / "metrics.csv").stat().st_size + 3):
        for each in (2, 3):
            run.record(each, pg_loss=0.5)
            with pytest.raises(DiskError):
                run.save(6.0)
    page = run.kept.report(7.0)
    assert (page["write_errors"], page["checkpoint_age_s"]) == (4, None)
    assert page["unsaved"].count(f"{run.folder}") == 2
    assert len(caplog.records) == 2
    assert not list(run.folder.glob(".checkpoint*"))
    run.record(4, pg_loss=0.5)
    run.save(8.0)
    assert run.kept.report(10.0) == UNWRITTEN_PAGE | {"checkpoint_age_s": 2.0, "write_errors": 4}
    assert steps(run.folder) == ["1", "4"]
    assert curve(run.folder, "losses/pg_loss") == [(1, 0.5), (4, 0.5)]


def test_a_learner_that_starts_on_a_full_disk_writes_its_rows_once_there_is_room(run: Keeping) -> None:
    (run.folder / "metrics.csv").write_text("agent_steps\n1\n9\n")
    (run.folder / "config.yaml").touch()
    with no_file_longer_than(8):
        run.kept.begin(1)
        run.record(5)
        assert run.kept.report(0.0)["unsaved"]
    run.record(5)
    assert not run.kept.report(0.0)["unsaved"]
    assert steps(run.folder) == ["1", "5"], "what the checkpoint has, and the new row"
    assert len(list((run.folder / "tensorboard").iterdir())) == 1


def test_what_callers_ask_for_is_done_with_the_next_row(run: Keeping) -> None:
    run.kept.begin(0)
    run.record(1, loss2=1.0)
    for value in (2.0, 3.0):
        logged = {"difficulty": value, "updates": 9, "loss2": 9, "a,b": 1, "text": "x"}
        requests.post_request(run.folder, requests.LOG, logged)
    requests.post_request(run.folder, requests.SET, {"impala.entropy_cost": "linear 0.25 0"})
    (run.folder / "requests" / "garbage.json").write_text("[")
    run.record(2)
    rows = [(row["agent_steps"], row["loss2"], row["difficulty"]) for row in table(run.folder)]
    assert rows == [("1", "1", ""), ("2", "", "3")], "a name of the algorithm is its own also in a row without a value"
    assert requests.read_logged_columns(run.folder) == {"difficulty"}
    assert not {"a,b", "text"} & table(run.folder)[0].keys()
    file = run.folder / "config.yaml"
    assert load_config(["--config", str(file)], {}).algorithm == run.training.trainer.config.algorithm
    assert "linear 0.25 0" in file.read_text()
    requests.post_request(run.folder, requests.SET, {"impala.entropy_cost": -1, "impala.uses": 3})
    requests.post_request(run.folder, requests.LOG, {"difficulty": 4.0})
    run.record(3)
    assert table(run.folder)[-1]["difficulty"] == "4", "what is refused does not take what is logged with it"
    assert "uses: 3" not in file.read_text()
    assert [*(run.folder / "requests").glob("*.json")] == []


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return run_config(tmp_path)


@pytest.fixture
def path(tmp_path: Path, config: RunConfig) -> Path:
    """A checkpoint after one update."""
    return save_checkpoint(tmp_path, train_on_seeds(Trainer(config, CPU, ENV), range(1)))


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
    whole = train_on_seeds(Trainer(config, CPU, ENV), range(6)).state()
    path = save_checkpoint(tmp_path, train_on_seeds(Trainer(config, CPU, ENV), range(3)))
    torch.rand(17)  # what a new process draws before it resumes must not matter
    resumed = Trainer(config, CPU, ENV)
    resumed.load(path, state_in(path))
    assert are_same(whole, train_on_seeds(resumed, range(3, 6)).state()), "random numbers included"
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
    assert are_same(Checkpoints(path.parent).load(), load_checkpoint(path.with_name(run_files.PREVIOUS_CHECKPOINT)))
    path.with_name(run_files.PREVIOUS_CHECKPOINT).write_bytes(content[:100])
    with pytest.raises(CheckpointError):
        Checkpoints(path.parent).load()  # if nothing whole is left, nothing silently begins anew


def test_a_flipped_bit_in_the_weights_is_noticed(tmp_path: Path, config: RunConfig) -> None:
    path = save_checkpoint(tmp_path, Trainer(config, CPU, ENV), padding=torch.ones(10_000))
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
def test_other_formats_and_foreign_files_are_refused_but_not_as_damaged(path: Path, changes: dict[str, Any]) -> None:
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
