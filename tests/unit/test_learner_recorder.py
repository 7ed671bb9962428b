"""metrics.csv and TensorBoard events, in the face of crashes."""

import csv
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from zerobeast.common.errors import ConfigError
from zerobeast.services.learner.recorder import COLUMNS, Record, Recorder

LAGS = np.array([3, 0, 5])


def row(agent_steps: int, **values: float | None) -> dict[str, float | int | None]:
    return {**dict.fromkeys(COLUMNS), "agent_steps": agent_steps, "env_frames": 4 * agent_steps, **values}


def record(folder: Path, resumed_at: int, *steps: int) -> None:
    folder.mkdir(exist_ok=True)
    recorder = Recorder(folder, resumed_at)
    for agent_steps in steps:
        recorder.write(Record(row(agent_steps, mean_return_100=1.5), {"pg_loss": 0.25}, LAGS, {}, ()))
    recorder.close()


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def events(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"histograms": 0})
    found.Reload()
    return found


def test_both_units_and_the_algorithms_metrics_are_columns(tmp_path: Path) -> None:
    record(tmp_path, 0, 100)
    (only,) = table(tmp_path)
    assert only["agent_steps"] == "100"
    assert only["env_frames"] == "400"
    assert only["pg_loss"] == "0.25"
    assert list(only)[: len(COLUMNS)] == list(COLUMNS)


def test_what_is_unknown_or_not_finite_is_an_empty_cell(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 0)
    recorder.write(Record(row(1, loss=float("nan"), grad_norm=float("inf")), {"x": None}, LAGS, {}, ()))
    recorder.close()
    text = (tmp_path / "metrics.csv").read_text()
    assert "nan" not in text.lower().split("\n")[1]
    assert "inf" not in text.lower().split("\n")[1]
    assert "losses/loss" not in events(tmp_path).Tags()["scalars"]


def test_tensorboard_has_the_usual_names_over_agent_steps(tmp_path: Path) -> None:
    record(tmp_path, 0, 100, 200)
    found = events(tmp_path)
    assert [(e.step, e.value) for e in found.Scalars("charts/episodic_return")] == [(100, 1.5), (200, 1.5)]
    assert "losses/pg_loss" in found.Tags()["scalars"]
    histogram = found.Histograms("perf/policy_lag")[0].histogram_value
    assert (histogram.num, histogram.sum, histogram.max) == (8.0, 10.0, 2.0)


def test_an_algorithm_with_a_pace_has_columns_and_curves_of_it(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 0)
    recorder.write(Record(row(7, replay_starved_s=2.5), {}, LAGS, {}, ()))
    recorder.close()
    assert table(tmp_path)[0]["replay_starved_s"] == "2.5"
    assert events(tmp_path).Scalars("perf/replay_starved_s")[0].value == 2.5


def test_other_values_are_curves_and_no_columns(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 0)
    recorder.write(Record(row(100), {}, LAGS, {"sync/lag/0": 2.5, "sync/lag/1": None}, ()))
    recorder.close()
    found = events(tmp_path)
    (only,) = found.Scalars("sync/lag/0")
    assert (only.step, only.value) == (100, 2.5)
    assert "sync/lag/1" not in found.Tags()["scalars"]
    assert list(table(tmp_path)[0]) == list(COLUMNS)


def test_a_resumed_run_appends_under_the_same_header(tmp_path: Path) -> None:
    record(tmp_path, 0, 100, 200)
    record(tmp_path, 200, 300)
    assert [entry["agent_steps"] for entry in table(tmp_path)] == ["100", "200", "300"]
    assert (tmp_path / "metrics.csv").read_text().count("agent_steps,") == 1


def test_rows_beyond_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    record(tmp_path, 0, 100, 200, 300)
    record(tmp_path, 200, 250)
    assert [entry["agent_steps"] for entry in table(tmp_path)] == ["100", "200", "250"]
    assert [event.step for event in events(tmp_path).Scalars("charts/episodic_return")] == [100, 200, 250]


@pytest.mark.parametrize("torn", ["300,1", '300,"', "\x00\x00\x00"])
def test_a_torn_last_line_is_dropped(tmp_path: Path, torn: str) -> None:
    record(tmp_path, 0, 100)
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write(torn)
    record(tmp_path, 500, 600)
    assert [entry["agent_steps"] for entry in table(tmp_path)] == ["100", "600"]


def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="no column 'agent_steps'"):
        Recorder(tmp_path, 0)
    assert (tmp_path / "metrics.csv").read_text() == "a,b\n1,2\n"


def test_an_unwritable_folder_is_refused_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").mkdir()
    with pytest.raises(ConfigError, match="the run folder cannot be written"):
        Recorder(tmp_path, 0)
