"""What a learner writes while its disk is full for a time; a limit on file sizes stands in for that."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.build.learners import run_config
from tests.helpers import no_file_longer_than
from tests.unit.test_learner_recorder import LAGS, events, table
from zerobeast.common.config.describe import dump
from zerobeast.common.config.load import load
from zerobeast.common.errors import CheckpointError, ConfigError
from zerobeast.common.files import requests
from zerobeast.common.files.atomic import Journal, write_atomically
from zerobeast.common.service.computing import Computing
from zerobeast.common.settings.tree import RunConfig
from zerobeast.services.learner.checkpoint import Checkpoints
from zerobeast.services.learner.kept import NOTHING_WRITTEN, Kept
from zerobeast.services.learner.recorder import COLUMNS, Record

UNASKED: Any = None  #: a training run of which nobody asks anything


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    """What a new run keeps in `tmp_path`."""
    with ExitStack() as resources:
        config = run_config(tmp_path.parent).model_copy(update={"name": tmp_path.name})
        kept = Kept(config, resources, Computing(lambda: 0.0))
        kept.begin(0)
        yield kept


@pytest.mark.parametrize("room", [0, 1, 99])
def test_an_entry_that_does_not_fit_leaves_nothing_and_the_next_one_follows(tmp_path: Path, room: int) -> None:
    journal = Journal(tmp_path / "j")
    journal.write(b"a" * 10)
    with no_file_longer_than(10 + room), pytest.raises(OSError, match="File too large"):
        journal.write(b"b" * 100)
    assert (tmp_path / "j").read_bytes() == b"a" * 10
    journal.write(b"c" * 100)
    journal.close()
    assert (tmp_path / "j").read_bytes() == b"a" * 10 + b"c" * 100


def test_a_journal_goes_on_where_an_earlier_one_ended(tmp_path: Path) -> None:
    for entry in (b"one", b"two"):
        journal = Journal(tmp_path / "j")
        assert (not journal.size) == (entry == b"one")
        journal.write(entry)
        journal.close()
    assert (tmp_path / "j").read_bytes() == b"onetwo"


def test_failed_rows_and_checkpoints_are_counted_logged_once_and_recover(
    tmp_path: Path, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    def record(agent_steps: int) -> None:
        row = {**dict.fromkeys(COLUMNS), "agent_steps": agent_steps}
        kept.record(UNASKED, Record(row, {"pg_loss": 0.5}, LAGS, {}, ()))

    def save(padding: int, now: float) -> None:
        training: Any = SimpleNamespace(
            trainer=SimpleNamespace(counters=SimpleNamespace(agent_steps=1, updates=1)),
            state=lambda _now: {"padding": "x" * padding},
            meters=SimpleNamespace(score=None),
        )
        kept.checkpoint(training, now, last=True, finished=False)

    record(1)
    assert kept.report(5.0) == NOTHING_WRITTEN
    with no_file_longer_than((tmp_path / "metrics.csv").stat().st_size + 3):
        for agent_steps in (2, 3):
            record(agent_steps)
            with pytest.raises(CheckpointError, match="File too large"):
                save(5000, now=6.0)
    page = kept.report(7.0)
    assert page["write_errors"] == 4
    assert page["checkpoint_age_s"] is None
    assert page["unsaved"] == (
        f"{tmp_path}: metrics are lost: File too large; "
        f"{tmp_path}/checkpoint.pt: the checkpoint cannot be written: File too large"
    )
    assert caplog.text.count("tried again") == 2
    assert not list(tmp_path.glob(".checkpoint*"))
    record(4)
    save(0, now=8.0)
    assert kept.report(10.0) == NOTHING_WRITTEN | {"checkpoint_age_s": 2.0, "write_errors": 4}
    assert [entry["agent_steps"] for entry in table(tmp_path)] == ["1", "4"]
    assert [event.step for event in events(tmp_path).Scalars("losses/pg_loss")] == [1, 4]


def test_what_callers_ask_for_is_done_with_the_next_row(
    tmp_path: Path, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    common = run_config(tmp_path.parent).model_dump()
    config = RunConfig.model_validate({**common, "name": tmp_path.name})
    write_atomically(tmp_path / "config.yaml", dump(config), durable=False)
    training: Any = SimpleNamespace(trainer=SimpleNamespace(config=config, counters=SimpleNamespace(agent_steps=1)))

    def record(steps: int, **losses: float) -> None:
        kept.record(training, Record({**dict.fromkeys(COLUMNS), "agent_steps": steps}, losses, LAGS, {}, ()))

    record(1, loss2=1.0)
    for value in (2.0, 3.0):
        requests.post(tmp_path, requests.LOG, {"difficulty": value, "updates": 9, "loss2": 9, "a,b": 1, "text": "x"})
    requests.post(tmp_path, requests.SET, {"impala.entropy_cost": "linear 0.25 0"})
    (tmp_path / "requests" / "garbage.json").write_text("[")
    record(2)
    assert [(row["agent_steps"], row["loss2"], row["difficulty"]) for row in table(tmp_path)] == [
        ("1", "1", ""),
        ("2", "", "3"),
    ], "a name of the algorithm is its own also in a row without a value"
    assert requests.logged(tmp_path) == {"difficulty"}
    assert not {"a,b", "text"} & table(tmp_path)[0].keys()
    again = load(["--config", str(tmp_path / "config.yaml")], {})
    assert again.algorithm == config.algorithm
    assert "linear 0.25 0" in (tmp_path / "config.yaml").read_text()
    requests.post(tmp_path, requests.SET, {"impala.entropy_cost": -1, "impala.uses": 3})
    requests.post(tmp_path, requests.LOG, {"difficulty": 4.0})
    record(3)
    assert table(tmp_path)[-1]["difficulty"] == "4", "what is refused does not take what is logged with it"
    assert "impala.uses cannot change while the run trains" in caplog.text
    assert "uses: 3" not in (tmp_path / "config.yaml").read_text()
    assert [*(tmp_path / "requests").glob("*.json")] == []


def test_the_header_comes_with_the_first_row_that_could_be_written(tmp_path: Path, kept: Kept) -> None:
    record = Record({**dict.fromkeys(COLUMNS), "agent_steps": 1}, {}, np.zeros(1, np.int64), {}, ())
    with no_file_longer_than(20):
        kept.record(UNASKED, record)
    kept.record(UNASKED, record)
    assert [entry["agent_steps"] for entry in table(tmp_path)] == ["1"]


def test_a_file_that_cannot_be_replaced_stays_and_no_temporary_file_does(tmp_path: Path) -> None:
    write_atomically(tmp_path / "t", "old", durable=False)
    with no_file_longer_than(100), pytest.raises(ConfigError, match="t cannot be written: File too large"):
        write_atomically(tmp_path / "t", "x" * 1000, durable=False)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"t": "old"}


def test_a_learner_that_starts_on_a_full_disk_writes_its_rows_once_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("agent_steps\n1\n9\n")
    record = Record({"agent_steps": 5}, {}, LAGS, {}, ())
    config = run_config(tmp_path.parent).model_copy(update={"name": tmp_path.name})
    (tmp_path / "config.yaml").touch()
    with ExitStack() as resources:
        kept = Kept(config, resources, Computing(lambda: 0.0))
        with no_file_longer_than(8):
            kept.begin(1)
            kept.record(UNASKED, record)
            assert "metrics are lost: " in kept.report(0.0)["unsaved"]
        kept.record(UNASKED, record)
        assert kept.report(0.0)["unsaved"] == ""
    assert (tmp_path / "metrics.csv").read_text() == "agent_steps\n1\n5\n", "what the checkpoint has, and the new row"
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1


@pytest.mark.parametrize(("room", "code"), [(100, 75), (None, 2)])
def test_a_last_checkpoint_that_a_full_disk_has_lost_is_worth_another_start(
    tmp_path: Path, room: int | None, code: int
) -> None:
    folder = tmp_path if room else tmp_path / "missing"
    with no_file_longer_than(room or 1 << 20), pytest.raises(CheckpointError) as caught:
        Checkpoints(folder).save({"model": b"x" * 1000})
    assert caught.value.exit_code == code
