"""What a run leaves in its folder, in the face of crashes and full disks; a limit on file sizes stands in for those."""

import csv
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.build.learners import ENV, B, run_config
from tests.build.streams import ListedRun, training_run
from tests.helpers import no_file_longer_than
from zerobeast.common.config.load import load
from zerobeast.common.errors import ConfigError, DiskError
from zerobeast.common.files import requests
from zerobeast.common.service.computing import Computing
from zerobeast.services.learner.kept import NOTHING_WRITTEN, Kept
from zerobeast.services.learner.ledger import SavedLedger
from zerobeast.services.learner.recorder import COLUMNS, Record, Recorder
from zerobeast.services.learner.update import Trainer

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
        self.folder, self.kept = folder, Kept(config, resources, Computing(lambda: 0.0))
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


def test_failed_rows_and_checkpoints_are_counted_logged_once_and_recover(
    run: Keeping, caplog: pytest.LogCaptureFixture
) -> None:
    run.kept.begin(0)
    run.record(1, pg_loss=0.5)
    assert run.kept.report(5.0) == NOTHING_WRITTEN
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
    assert run.kept.report(10.0) == NOTHING_WRITTEN | {"checkpoint_age_s": 2.0, "write_errors": 4}
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
        requests.post(run.folder, requests.LOG, logged)
    requests.post(run.folder, requests.SET, {"impala.entropy_cost": "linear 0.25 0"})
    (run.folder / "requests" / "garbage.json").write_text("[")
    run.record(2)
    rows = [(row["agent_steps"], row["loss2"], row["difficulty"]) for row in table(run.folder)]
    assert rows == [("1", "1", ""), ("2", "", "3")], "a name of the algorithm is its own also in a row without a value"
    assert requests.logged(run.folder) == {"difficulty"}
    assert not {"a,b", "text"} & table(run.folder)[0].keys()
    file = run.folder / "config.yaml"
    assert load(["--config", str(file)], {}).algorithm == run.training.trainer.config.algorithm
    assert "linear 0.25 0" in file.read_text()
    requests.post(run.folder, requests.SET, {"impala.entropy_cost": -1, "impala.uses": 3})
    requests.post(run.folder, requests.LOG, {"difficulty": 4.0})
    run.record(3)
    assert table(run.folder)[-1]["difficulty"] == "4", "what is refused does not take what is logged with it"
    assert "uses: 3" not in file.read_text()
    assert [*(run.folder / "requests").glob("*.json")] == []
