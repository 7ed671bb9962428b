"""What a sweep tries, which files are refused, and which cores its runs get."""

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import zerobeast as zb
from tests.build.folders import saved
from tests.build.learners import ENV
from tests.helpers import no_file_longer_than
from zerobeast.cli import runs, watch
from zerobeast.cli.sweep import main
from zerobeast.common.config.confirmed import remember
from zerobeast.common.config.layers import Given
from zerobeast.common.errors import ConfigError
from zerobeast.discovery.run import newest
from zerobeast.launcher.parent import Parent
from zerobeast.launcher.supervisor import Ending
from zerobeast.sweeping.cores import Place, gpu_of, share
from zerobeast.sweeping.journal import JOURNAL, SweepJournal, opened, summary
from zerobeast.sweeping.runner import Runner
from zerobeast.sweeping.search import grid, read_dimension, samples
from zerobeast.sweeping.spec import read
from zerobeast.sweeping.trials import Trial, trials_of

BASE = {"env": "CartPole-v1", "algo": "ppo", "total_steps": 1000}
PAIRS = [(0, 4), (1, 5), (2, 6), (3, 7)]  #: four cores of two hardware threads


def planned(folder: Path, vary: dict[str, Any] | None = None, *confirmed: Given, **parts: Any) -> list[Trial]:
    file = folder / "lr.yaml"
    file.write_text(yaml.safe_dump({"settings": BASE, "root": str(folder), "vary": vary or {}, **parts}))
    remember(file, {"root": str(folder)})
    return trials_of(read(file, []), confirmed)


def settings(trial: Trial) -> dict[str, str]:
    return dict(flag.removeprefix("--").split("=", 1) for flag in trial.flags)


def refusal(folder: Path, vary: dict[str, Any] | None = None, **parts: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        planned(folder, vary, **parts)
    return str(refused.value).replace(f"{folder}/", "")


def test_a_grid_has_every_combination_with_one_seed_before_the_next_and_a_name_for_each(tmp_path: Path) -> None:
    trials = planned(tmp_path, {"algo": ["ppo", "a2c"], "learner": {"batch_size": [16, 32]}}, seeds=[1, 2])
    assert [trial.name for trial in trials] == [
        f"{algo}-batch_size-{size}-seed-{seed}" for seed in (1, 2) for algo in ("ppo", "a2c") for size in (16, 32)
    ]
    assert set(trials[1].flags) == {
        *("--env.id=CartPole-v1", "--total_steps=1000", "--algo=ppo", "--learner.batch_size=32", "--seed=1")
    }


def test_values_that_belong_together_vary_together(tmp_path: Path) -> None:
    trials = planned(tmp_path, {"env, total_steps": [["CartPole-v1", 500], ["Acrobot-v1", 700]]})
    given = [settings(trial) for trial in trials]
    assert [(each["env.id"], each["total_steps"]) for each in given] == [("CartPole-v1", "500"), ("Acrobot-v1", "700")]
    assert [trial.name for trial in trials] == ["CartPole-v1-total_steps-500", "Acrobot-v1-total_steps-700"]


def test_random_draws_follow_from_the_seed_and_more_of_them_begin_with_the_same_ones(tmp_path: Path) -> None:
    vary = {
        "ppo.learning_rate": {"log_uniform": ["1e-4", 0.1]},
        "ppo.entropy_cost": {"uniform": [0, 0.02]},
        "ppo.epochs": {"integers": [2, 5]},
        "net.hidden_size": [16, 32],
    }
    three, five = (planned(tmp_path, vary, samples=n, seed=7, seeds=[1]) for n in (3, 5))
    assert three == five[:3]
    assert [trial.name for trial in three] == [f"sample-00{n}-seed-1" for n in (1, 2, 3)]
    assert three != planned(tmp_path, vary, samples=3, seed=8, seeds=[1])
    for trial in five:
        assert 1e-4 <= float(settings(trial)["ppo.learning_rate"]) <= 0.1
        assert int(settings(trial)["ppo.epochs"]) in range(2, 6)
        assert settings(trial)["net.hidden_size"] in ("16", "32")
    fewer = {path: vary[path] for path in list(vary)[1:]}
    again = planned(tmp_path, fewer, samples=3, seed=7, seeds=[1])
    assert [settings(trial)["ppo.epochs"] for trial in again] == [settings(trial)["ppo.epochs"] for trial in three]


def test_draws_cover_their_range() -> None:
    rates = [read_dimension("a", {"log_uniform": [1e-4, 1.0]}, "").at(chance)["a"] for chance in (0, 0.25, 0.5, 0.9999)]
    assert rates == pytest.approx([1e-4, 1e-3, 1e-2, 1.0], rel=0.01)
    drawn = [values["a"] for values in samples([read_dimension("a", {"integers": [1, 4]}, "")], 4, 1)]
    assert sorted(drawn) == [1, 2, 3, 4], "each differs from those before"
    assert list(grid([])) == [{}]


@pytest.mark.parametrize(
    ("vary", "parts", "sentence"),
    [
        ({}, {}, "lr.yaml: vary: nothing varies; expected a setting with its values, or `seeds`"),
        ({"seed": [1]}, {"sead": 1}, "lr.yaml: sead: unknown entry; did you mean seed?"),
        ({"seed": [1]}, {"env": "X"}, "lr.yaml: env: unknown entry; settings of runs stand below `settings`"),
        ({"seed": [1]}, {"parallel": 0}, "lr.yaml: parallel: got 0, expected a whole number, at least 1"),
        ({"seed": [1]}, {"name": "a b"}, "lr.yaml: name 'a b': expected letters, digits, '.', '_' and '-', at most"),
        ({"algo": ["ppo"]}, {"seed": 3}, "lr.yaml: seed: only draws have it (`samples`); for the seeds of runs there"),
        ({"seed": [1]}, {"seeds": [2]}, "lr.yaml: vary: seed: seed varies in seeds as well; expected it once"),
        ({"algo": ["ppo"]}, {"seeds": 0}, "lr.yaml: seeds: got 0, expected a list of whole numbers such as [1, 2, 3]"),
        ({"seed": [1]}, {"from": 0}, "lr.yaml: from: got 0, expected a run, such as base"),
        ({"seed": []}, {}, "lr.yaml: vary: seed: got [], expected a list of at least one value"),
        ({"seed": 1}, {}, "lr.yaml: vary: seed: got 1, expected a list of values, or one of uniform"),
        ({"seed": {"integer": [1, 2]}}, {}, "lr.yaml: vary: seed: unknown distribution 'integer'; did you mean int"),
        (
            {"seed": {"integers": [2, 1]}},
            {},
            "lr.yaml: vary: seed: integers: got [2, 1], expected [low, high], tw",
        ),
        (
            {"seed": {"integers": [1, 9]}},
            {},
            "lr.yaml: vary: seed: expected a list of values; `samples: 20` draws",
        ),
        (
            {"seed, algo": [[1]]},
            {},
            "lr.yaml: vary: seed, algo: got [1], expected a list with a value for each of s",
        ),
        ({"ppo.epoch": [1]}, {}, "lr.yaml: vary: ppo.epoch: unknown setting; did you mean ppo.epochs?"),
        ({"ppo.epochs": [1, "many"]}, {}, "lr.yaml: vary: ppo.epochs: got 'many', expected a whole number, at least 1"),
        ({"algo": ["ppo", "pppo"]}, {}, "lr.yaml: vary: algo: algo 'pppo': expected "),
        ({"name": ["x"]}, {}, "lr.yaml: vary: name: every run gets its own"),
        (
            {"env": ["mine:Env"]},
            {},
            "lr.yaml: vary: env.id: 'mine:Env' imports a module",
        ),
        ({"seed": [1, 2, 1]}, {}, "lr.yaml: vary: (seed 1) and (seed 1) give the same run; expected runs that differ"),
        ({"algo": ["a2c"], "ppo.epochs": [1, 2]}, {}, "lr.yaml: vary: (algo a2c, ppo.epochs 1) and (algo a2c, ppo.epo"),
        (
            {"local.placement": ["serve"], "preset": ["classic-ppo"]},
            {},
            "lr.yaml: local.placement serve: expected one with environments, for a sweep",
        ),
        (
            {"ppo.epochs": {"integers": [1, 2]}},
            {"samples": 3},
            "lr.yaml: samples: got 3, expected at most 2, because these values give no more",
        ),
        ({"seed": [1]}, {"from": "base"}, "there is no run 'base'"),
    ],
)
def test_a_file_that_cannot_be_run_is_refused_before_anything_starts(
    tmp_path: Path, vary: dict[str, Any], parts: dict[str, Any], sentence: str
) -> None:
    assert refusal(tmp_path, vary, **parts).startswith(sentence)


def test_two_runs_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerobeast.sweeping.trials.spec_of", lambda _: ENV)
    sentence = refusal(tmp_path, {"env.kwargs": [{"a": 1}, {"a": [1]}]})
    assert sentence.startswith("lr.yaml: vary: (env.kwargs {'a': 1}) and (env.kwargs {'a': [1]}) are both called kwa")


def test_a_long_name_is_cut_and_stays_unlike_others(tmp_path: Path) -> None:
    vary = {f"net.{name}": [1, 2] for name in ("hidden_size", "lstm_size", "max_parameters")}
    vary |= {"learner.unroll_length": [64, 65], "actor.env_groups": [2, 3], "envserver.step_timeout_s": [61, 62]}
    names = [trial.name for trial in planned(tmp_path, vary, seeds=[1234567890])]
    assert len(set(names)) == 64
    assert max(map(len, names)) <= 100


def test_a_flag_confirms_what_the_file_imports(tmp_path: Path) -> None:
    same = Given("net.torso", "tests.unit.test_networks:SHORT", "flag --net.torso")
    assert "give --net.torso" in refusal(tmp_path, {"net.torso": [same.value]})
    assert planned(tmp_path, {"net.torso": [same.value, "mlp"]}, same)[0].name.startswith("torso-tests.unit")


@pytest.mark.parametrize(
    ("cores", "most", "parallel", "each", "places"),
    [
        (PAIRS, 8, None, None, PAIRS),
        (PAIRS, 8, None, 2, [(0, 4, 1, 5), (2, 6, 3, 7)]),
        (PAIRS, 8, 3, None, PAIRS[:3]),
        (PAIRS, 8, 2, 1, PAIRS[:2]),
        (PAIRS, 8, 8, None, [(0,), (4,), (1,), (5,), (2,), (6,), (3,), (7,)]),
        (PAIRS, 4, None, None, PAIRS[:2]),
        ([(0,), (1,)], 2, None, None, [(0,), (1,)]),
        ([(0, 1)], 1, None, None, [(0,)]),
    ],
)
def test_runs_share_no_core(cores: Any, most: int, parallel: Any, each: Any, places: Any) -> None:
    assert share(cores, most, parallel, each) == places


@pytest.mark.parametrize(("parallel", "each"), [(3, None), (None, 3), (2, 2)])
def test_more_than_there_is_is_refused(parallel: Any, each: Any) -> None:
    with pytest.raises(ConfigError, match="this process may use 2 CPUs; expected fewer runs at a time or fewer cores"):
        share([(0,), (1,)], 2, parallel, each)


def test_runs_take_turns_on_the_gpus_that_are_visible() -> None:
    assert [gpu_of(n, {"CUDA_VISIBLE_DEVICES": "2,5"})["CUDA_VISIBLE_DEVICES"] for n in range(3)] == ["2", "5", "2"]
    assert gpu_of(1, {"CUDA_VISIBLE_DEVICES": ""}) == {}


def test_a_journal_goes_on_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.started("a", ("--seed=1",), (0,))
        journal.ended("a", Ending(0, finished=True), 2.0)
        journal.started("b", ("--seed=2",), (1,))
    with (tmp_path / JOURNAL).open("a") as file:
        file.write('{"event": "end", "run": "b", "co')
    with opened(tmp_path) as journal:
        assert journal.done == {"a"}
        with pytest.raises(ConfigError, match="is already running here"), opened(tmp_path):
            pass
        journal.ended("b", Ending(1, "it broke"), 3.0)
        journal.started("b", ("--seed=2",), (1,))
        journal.ended("b", Ending(143), 4.0)
    with opened(tmp_path) as journal:
        assert journal.done == {"a"}
    for line in (tmp_path / JOURNAL).read_text().splitlines():
        json.loads(line)


def test_a_sweep_is_seen_among_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(folder := tmp_path / "lr") as journal:
        journal.begun(3)
        journal.started("a", ("--seed=1",), (0,))
        journal.ended("a", Ending(0, finished=True), 2.0)
        journal.started("b", ("--seed=2",), (1,))
        assert summary(folder) == "lr/: sweep, 1 of 3 runs done, running"
    assert runs.main(["--root", str(tmp_path)]) == 0
    assert "lr/: sweep, 1 of 3 runs done, stopped: beast runs --root" in capsys.readouterr().out
    (folder / "seed-1").mkdir()
    (folder / "seed-1" / "config.yaml").touch()
    assert runs.main(["--root", str(tmp_path), "--json"]) == 0
    assert [run["name"] for run in json.loads(capsys.readouterr().out)] == ["lr/seed-1"]
    (folder / JOURNAL).write_text('{"event": "begin", "runs": 1e999}\n')
    assert runs.main(["--root", str(tmp_path)]) == 0
    assert "not an entry of a sweep's journal" in capsys.readouterr().err


def test_the_newest_run_may_be_one_of_a_sweep(tmp_path: Path) -> None:
    for number, place in enumerate(("old", "lr/a", "other/b")):
        (tmp_path / place / "services").mkdir(parents=True)
        (tmp_path / place / "services" / "learner-0.json").touch()
        os.utime(tmp_path / place / "services" / "learner-0.json", (number, number))
    (tmp_path / "lr" / JOURNAL).touch()
    assert newest(tmp_path) == tmp_path / "lr" / "a"
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / JOURNAL).touch()
    with pytest.raises(ConfigError, match=r"no run in .*empty has been started"):
        watch.main(["empty", "--root", str(tmp_path)])


def test_a_folder_of_something_else_and_other_settings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    with pytest.raises(ConfigError, match="is not the folder of a sweep"), opened(tmp_path):
        pass
    trials = planned(tmp_path, seeds=[1])
    with opened(tmp_path / "lr") as journal:
        journal.started("seed-1", trials[0].flags, (0,))
        journal.refuse_changes(trials)
        other = planned(tmp_path, seeds=[1], settings={**BASE, "total_steps": 7})
        with pytest.raises(ConfigError, match=r"'seed-1' was started with --total_steps=1000, .* now has --total_st"):
            journal.refuse_changes(other)
        (tmp_path / "lr" / "seed-2").mkdir()
        with pytest.raises(ConfigError, match="seed-2 exists, and the sweep has not made it"):
            journal.refuse_changes(planned(tmp_path, seeds=[1, 2]))


def test_a_journal_that_a_link_has_replaced_meanwhile_changes_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (other := tmp_path / "other").write_text("mine")

    def replace(*_: Any, **__: Any) -> None:
        (tmp_path / "lr" / JOURNAL).unlink()
        (tmp_path / "lr" / JOURNAL).symlink_to(other)

    monkeypatch.setattr("zerobeast.sweeping.journal.lock", replace)
    with pytest.raises(ConfigError, match="cannot be written"), opened(tmp_path / "lr"):
        pass
    assert other.read_text() == "mine"


def test_an_entry_that_is_no_journals_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text('{"event": "end", "run": 3}\n')
    with pytest.raises(ConfigError, match=f"{JOURNAL}, line 1: not an entry of a sweep's journal"), opened(tmp_path):
        pass


def test_a_dry_run_lists_the_runs_and_starts_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned(tmp_path, seeds=[1, 2])
    assert main([str(tmp_path / "lr.yaml"), "--dry_run", "--parallel", "1"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["seed-1", "seed-2"]
    assert os.listdir(tmp_path) == ["lr.yaml"]
    with pytest.raises(ConfigError, match="flag --seeds: unknown setting"):
        main([str(tmp_path / "lr.yaml"), "--seeds", "1"])
    with pytest.raises(ConfigError, match="flag --total_steps: settings of runs stand in the file"):
        main([str(tmp_path / "lr.yaml"), "--total_steps", "1"])


def runner(folder: Path, journal: SweepJournal, monkeypatch: pytest.MonkeyPatch, *places: Place) -> tuple[Runner, Any]:
    """A runner, and what it has trained; "b" trains to its end, and its evaluator fails."""
    trained: list[tuple[str, Place]] = []

    def begun(runner: Runner, trial: Trial, place: int) -> Any:
        trained.append((trial.name, runner._places[place]))
        ending = Ending(1, "it broke", finished=True) if trial.name == "b" else Ending(0, finished=True)
        return SimpleNamespace(wait=lambda _timeout: True, ending=ending)

    monkeypatch.setattr(Runner, "_begun", begun)
    return Runner(folder, places, journal, lambda _: None), trained


TRIALS = [Trial(name, ()) for name in "abc"]


def test_each_run_has_a_free_place_and_one_that_is_not_done_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as journal:
        first, trained = runner(tmp_path, journal, monkeypatch, (0,), (1,))
        assert first.run(TRIALS) == 0
        assert sorted(trained[:2]) == [("a", (0,)), ("b", (1,))]
        assert trained[2][0] == "c"
        assert first.failed == {"b": "it broke"}
    with opened(tmp_path) as journal:
        again, trained = runner(tmp_path, journal, monkeypatch, (0,))
        again.run(TRIALS)
    assert trained == [("b", (0,))]


def test_a_run_that_is_gone_is_trained_again_and_one_that_cannot_be_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planned(tmp_path, seeds=[1, 2, 3])
    file, trained = str(tmp_path / "lr.yaml"), list[str]()

    def begun(runner: Runner, trial: Trial, _place: int) -> Any:
        trained.append(trial.name)
        saved(runner._folder, trial.name, {100: 1.0}, {100: 1.0}, seed=len(trained))
        return SimpleNamespace(wait=lambda _timeout: True, ending=Ending(0, finished=True))

    monkeypatch.setattr(Runner, "_begun", begun)
    assert main([file, "--parallel", "1", "--root", str(tmp_path)]) == 0
    found = zb.sweep(file, parallel=1, root=tmp_path)
    assert [(name, run and run.name, outcome) for name, run, outcome in found] == [
        (name, name, "done") for name in ("seed-1", "seed-2", "seed-3")
    ]
    shutil.rmtree(tmp_path / "lr" / "seed-2")
    (tmp_path / "lr" / "seed-1" / "config.yaml").write_text("[")
    capsys.readouterr()
    assert main([file, "--parallel", "1", "--root", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert trained == ["seed-1", "seed-2", "seed-3", "seed-2"]
    assert "seed-2 was done, but its folder is gone: it is trained again" in said.out
    assert "left out: " in said.err
    assert "| n | " in re.sub(" +", " ", said.out)


def test_a_full_disk_costs_a_sentence_for_each_run_and_not_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as journal:
        journal.started("a", (), (0,))
        whole = (tmp_path / JOURNAL).read_bytes()
        full, trained = runner(tmp_path, journal, monkeypatch, (0,))
        with no_file_longer_than(len(whole) + 3):
            assert full.run(TRIALS) == 0
        assert (trained, list(full.failed)) == ([], ["a", "b", "c"])
        assert all("sweep.jsonl cannot be written: File too large" in sentence for sentence in full.failed.values())
        assert (tmp_path / JOURNAL).read_bytes() == whole
        assert full.run(TRIALS) == 0
    assert [name for name, _ in trained] == ["a", "b", "c"]


def test_a_sweep_whose_parent_has_trained_on_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begun(steps: int) -> list[Trial]:
        parent = Parent("base", tmp_path / "config.yaml", {}, {"counters": {"agent_steps": steps}})
        monkeypatch.setattr("zerobeast.sweeping.trials.parent_in", lambda _: parent)
        return planned(tmp_path, seeds=[1], **{"from": "base"})

    trials = begun(300)
    with opened(tmp_path / "lr") as journal:
        journal.started("seed-1", trials[0].flags, (0,))
        journal.refuse_changes(begun(300))
        with pytest.raises(ConfigError, match=r"started with --parent.agent_steps=300, .* now has --parent.agent_st"):
            journal.refuse_changes(begun(400))


def test_arguments_that_vary_are_added_to_those_of_all_runs_and_of_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerobeast.sweeping.trials.spec_of", lambda _: ENV)
    vary = {"env.kwargs": [{"width": 32}, {"target": None}]}
    given = {**BASE, "env.kwargs": {"target": 7}}
    trials = planned(tmp_path, vary, settings=given)
    assert [trial.name for trial in trials] == ["kwargs-width-32", "kwargs-target-null"]
    assert [json.loads(settings(trial)["env.kwargs"]) for trial in trials] == [{"target": 7, "width": 32}, {}]
    tree = {"env": {"kwargs": {"target": 1, "size": 2}}}
    parent = Parent("base", tmp_path / "config.yaml", tree, {"counters": {"agent_steps": 9}})
    monkeypatch.setattr("zerobeast.sweeping.trials.parent_in", lambda _: parent)
    trials = planned(tmp_path, vary, settings=given, **{"from": "base"})
    assert json.loads(settings(trials[1])["env.kwargs"]) == {"target": None, "size": 2}, "over those of the parent"
