"""`beast bench machine` without its long runs: what it measures, in which order, and what it leaves in its file."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from zerobeast.common.config.load import load_config
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast_tools.bench import machine
from zerobeast_tools.bench.machine import Item, Record, run_items
from zerobeast_tools.bench.waste import Waste, waste_of

GPU = {"gpu": "one"}


class Workload:
    """Items that take time of a clock of their own, and note their names; those in `broken` fail.

    Args:
      path: of the file with the records.
      seconds: that each item is expected to take.
      late_s: that each takes besides.
    """

    def __init__(self, path: Path, seconds: float = 10.0, late_s: float = 5.0) -> None:
        self.measured: list[str] = []
        self.broken: set[str] = set()
        self.now_s = 100.0
        self.items = [Item(name, self._measuring(name, seconds + late_s), seconds) for name in "abc"]
        self._path = path

    def run(self, budget_s: float) -> dict[str, Record]:
        """The names of what was measured now are in `measured`."""
        self.measured = []
        return run_items(self.items, self._path, budget_s, GPU, clock=lambda: self.now_s)

    def _measuring(self, name: str, seconds: float) -> Callable[[], Record]:
        def measure() -> Record:
            self.measured.append(name)
            self.now_s += seconds
            if name in self.broken:
                raise BeastError(f"{name} does not train")
            return {"rate": 2.5, "learned_share": 1.0}

        return measure


def test_the_next_call_measures_what_is_missing_or_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    work = Workload(path)
    work.broken = {"a"}
    found = work.run(budget_s=30.0)
    assert work.measured == ["a", "b"]
    assert found["a"] == {"error": "a does not train", "machine": GPU}
    assert json.loads(path.read_text()) == {"items": found}
    assert [each.value for each in machine.list_figures(found)] == [2.5, 1.0]
    work.broken = set()
    found = work.run(budget_s=1000.0)
    assert work.measured == ["c", "a"]
    assert [name for name, record in found.items() if "error" not in record] == ["a", "b", "c"]
    assert (work.run(budget_s=1000.0), work.measured) == (found, [])


def test_the_file_is_rewritten_after_each_item(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    work = Workload(path)

    def look() -> Record:
        return {"seen": [*json.loads(path.read_text())["items"]]}

    work.items.insert(1, Item("look", look, 0.0))
    assert work.run(budget_s=1000.0)["look"]["seen"] == ["a"]


@pytest.mark.parametrize(("budget_s", "measured"), [(9.0, []), (10.0, ["a"]), (29.0, ["a"]), (30.0, ["a", "b"])])
def test_no_item_begins_that_would_end_after_the_budget(tmp_path: Path, budget_s: float, measured: list[str]) -> None:
    work = Workload(tmp_path / "machine.json")
    work.run(budget_s)
    assert work.measured == measured


def test_an_item_that_hangs_fails_once_the_budget_is_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LATE_S", 0.0)
    work = Workload(tmp_path / "machine.json", seconds=0.05, late_s=0.0)
    work.items.insert(1, Item("hanging", Event().wait, 0.0))  # type: ignore[arg-type]
    found = work.run(budget_s=0.1)
    assert [name for name, record in found.items() if "error" in record] == ["hanging"]


def test_a_shorter_item_takes_the_time_that_is_left(tmp_path: Path) -> None:
    work = Workload(tmp_path / "machine.json", late_s=0.0)
    work.items[2] = work.items[2]._replace(seconds=1.0)
    work.run(budget_s=15.0)
    assert work.measured == ["a", "c"]


@pytest.mark.parametrize("text", ["", "[]", '{"items": [1]}', '{"figures": []}'])
def test_a_file_of_another_command_stays_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "machine.json"
    path.write_text(text)
    with pytest.raises(ConfigError):
        Workload(path).run(budget_s=1000.0)
    assert path.read_text() == text


@pytest.mark.parametrize("flags", machine.RUNS.values(), ids=[*machine.RUNS])
def test_the_settings_of_a_run_fit_together(flags: tuple[str, ...]) -> None:
    config = load_config([*flags], {})
    assert getattr(config.algorithm, "replay_min_size", 0) <= 1000


def test_acting_has_figures_on_this_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ROWS", (2, 3))
    monkeypatch.setattr(machine, "ACTING_S", 0.01)
    batches = machine.measure_acting("shallow")["batches"]
    assert [*batches] == ["2", "3"]
    assert all(each["ms"] * each["rows_per_s"] == pytest.approx(1000 * int(rows)) for rows, each in batches.items())


def test_a_share_of_the_rollouts_is_learned_from() -> None:
    waits = [{"waiting_credit_fraction": 0.5}, {}]
    assert waste_of(Counter(used=3, stale=1, cut=0), 8.0, waits) == Waste(0.75, {"stale": 1, "cut": 0}, 8.0, 0.25)
    assert waste_of(Counter(), 0.0, []).learned_share == 0
