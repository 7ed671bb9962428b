"""Measuring tools without their long runs: `beast bench`, `beast tune`, and the faults of `make mutants`."""

import json
from collections import Counter
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from zerobeast.common.config.load import load_config
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast_tools import tune
from zerobeast_tools.bench import machine
from zerobeast_tools.bench.in_process import InProcess
from zerobeast_tools.bench.machine import Item, Record, run_items
from zerobeast_tools.bench.replay import measure
from zerobeast_tools.bench.train import Training
from zerobeast_tools.bench.waste import Waste, waste_of
from zerobeast_tools.mutants.__main__ import KILLED, SURVIVED, report
from zerobeast_tools.mutants.sites import apply_mutant, mutants
from zerobeast_tools.tune import DIMENSIONS, Values


def test_a_replay_has_figures_and_leaves_no_files(tmp_path: Path) -> None:
    config = load_config(["--env", "CartPole-v1", "--root", str(tmp_path), "--actor.envs_per_group", "2"], {})
    found = measure(config, 0.01, stored=400, played=120)
    assert all(each.value > 0 and each.yardstick for each in found)
    assert list(tmp_path.iterdir()) == []


def test_the_policy_that_acts_is_that_of_lag_updates_ago() -> None:
    sizes = ["--learner.unroll_length", "10", "--learner.batch_size", "4", "--total_steps", "200"]
    with InProcess(load_config(["--env", "CartPole-v1", "--algo", "impala", *sizes], {}), lag=2) as run:
        for version in (0, 0, 0, 1, 2):
            rows = run.collect()
            assert (rows["policy_version"] == version).all()
            run.learn(rows)
        assert not run.trainer.steps_left


def test_the_choice_is_a_file_that_train_reads_and_if_nothing_trains_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rate(flags: list[str], _warmup: float, _seconds: float) -> Training:
        size = load_config(flags, {}).learner.batch_size
        if size in (4, 32):
            raise BeastError("training did not start")
        return Training(float(size), {}, {}, 1.0)

    def sizes(best: Values) -> list[Values]:
        return [best | {"learner.batch_size": value} for value in (4, min(16, 2 * best["learner.batch_size"]))]

    monkeypatch.setattr(tune, "measure_training", rate)
    monkeypatch.setattr(tune, "DIMENSIONS", {"batch": DIMENSIONS["batch"]._replace(candidates=sizes)})
    out = tmp_path / "tuned.yaml"
    argv = ["--env", "CartPole-v1", "--learner.unroll_length", "5", "--only", "batch", "--out", str(out)]
    assert tune.main(argv) == 0
    assert load_config(["--config", str(out)], {}).learner.batch_size == 16
    out.unlink()
    with pytest.raises(ConfigError):
        tune.main([*argv, "--learner.batch_size", "4"])
    assert not out.exists()


MODULE = """\
def limited(value: int, most: int = 9) -> int:
    if value > most:
        return most
    return value
"""


def test_faults_are_found_in_bodies_of_functions_and_each_changes_one_place(tmp_path: Path) -> None:
    path = tmp_path / "rl" / "ops" / "limit.py"
    path.parent.mkdir(parents=True)
    path.write_text(MODULE)
    found = mutants(path, tmp_path)
    assert [(each.line, each.new) for each in found] == [(2, "(value >= most)"), (3, "return None"), (4, "return None")]
    first, second, third = found
    assert apply_mutant(first, path.read_bytes()).decode() == MODULE.replace("value > most", "(value >= most)")
    assert report({first: KILLED, second: SURVIVED, third: KILLED}).splitlines()[-1].split()[:3] == ["all", "3", "2"]


GPU = {"gpu": "one"}


def measure_three(path: Path, budget_s: float, broken: str = "") -> tuple[str, dict[str, Record]]:
    """What was measured of three items that take 15 s each instead of 10, and all records then.

    Args:
      broken: items that fail.
    """
    measured: list[str] = []

    def measuring(name: str) -> Record:
        measured.append(name)
        if name in broken:
            raise BeastError(f"{name} does not train")
        return {"rate": 2.5, "learned_share": 1.0}

    items = [Item(name, partial(measuring, name), 10.0) for name in "abc"]
    found = run_items(items, path, budget_s, GPU, clock=lambda: 15.0 * len(measured))
    return "".join(measured), found


@pytest.mark.parametrize(("budget_s", "first"), [(9.0, ""), (24.0, "a"), (25.0, "ab"), (44.0, "ab"), (45.0, "abc")])
def test_the_next_call_measures_what_is_missing_or_has_failed(tmp_path: Path, budget_s: float, first: str) -> None:
    path = tmp_path / "machine.json"
    measured, found = measure_three(path, budget_s, broken="a")
    assert measured == first, "no item begins that would end after the budget"
    assert found.get("a") in (None, {"error": "a does not train", "machine": GPU})
    assert [each.value for each in machine.list_figures(found)] == [2.5, 1.0] * len(first[1:])
    measured, found = measure_three(path, 1000.0)
    assert measured == "abc".removeprefix(first) + first[:1], "what has failed comes last"
    assert json.loads(path.read_text()) == {"items": found}
    assert [name for name, record in found.items() if "error" not in record] == [*"abc"]
    assert measure_three(path, 1000.0) == ("", found)


def test_an_item_that_hangs_fails_once_the_budget_is_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LATE_S", 0.0)
    hanging = Item("hanging", Event().wait, 0.0)  # type: ignore[arg-type]
    assert "error" in run_items([hanging], tmp_path / "machine.json", 0.1, GPU)["hanging"]


def test_a_file_of_another_command_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text('{"figures": []}')
    with pytest.raises(ConfigError):
        measure_three(path, 1000.0)
    assert path.read_text() == '{"figures": []}'


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
