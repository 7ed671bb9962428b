"""What a sweep tries, which files are refused, which cores its runs get, and how it goes on."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import zerobeast as zb
from tests.build.errors import refuses
from tests.build.folders import save_run
from tests.build.learners import ENV
from zerobeast.cli import runs, watch
from zerobeast.cli.sweep import main
from zerobeast.common.config.confirmations import remember
from zerobeast.common.config.layers import GivenValue
from zerobeast.common.config.request import Request
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.process import signals
from zerobeast.discovery.folder_services import find_newest
from zerobeast.launcher.supervisor import Ending
from zerobeast.plan.parent import Parent
from zerobeast.sweeping import runner, trials
from zerobeast.sweeping.cores import Place, divide_cores, gpu_of
from zerobeast.sweeping.journal import JOURNAL, open_journal, summarize_sweep
from zerobeast.sweeping.runner import Runner
from zerobeast.sweeping.search import draw_samples, read_dimension
from zerobeast.sweeping.spec import read_sweep
from zerobeast.sweeping.trials import Trial, trials_of

BASE = {"env": "CartPole-v1", "algo": "ppo", "total_steps": 1000}
PAIRS = [(0, 4), (1, 5), (2, 6), (3, 7)]  #: four cores of two hardware threads
DONE = Ending(0, finished=True)


def planned(folder: Path, vary: dict[str, Any] | None = None, *confirmed: GivenValue, **parts: Any) -> list[Trial]:
    file = folder / "lr.yaml"
    file.write_text(yaml.safe_dump({"settings": BASE, "root": str(folder), "vary": vary or {}, **parts}))
    remember(file, {"root": str(folder)})
    return trials_of(read_sweep(file, []), confirmed)


def settings(trial: Trial) -> dict[str, str]:
    return dict(flag.removeprefix("--").split("=", 1) for flag in trial.flags)


def test_a_grid_has_every_combination_with_one_seed_before_the_next_and_a_name_for_each(tmp_path: Path) -> None:
    found = planned(tmp_path, {"algo": ["ppo", "a2c"], "learner": {"batch_size": [16, 32]}}, seeds=[1, 2])
    assert [trial.name for trial in found] == [
        f"{algo}-batch_size-{size}-seed-{seed}" for seed in (1, 2) for algo in ("ppo", "a2c") for size in (16, 32)
    ]
    wanted = {"env.id": "CartPole-v1", "total_steps": "1000", "algo": "ppo", "learner.batch_size": "32", "seed": "1"}
    assert settings(found[1]) == wanted
    together = planned(tmp_path, {"env, total_steps": [["CartPole-v1", 500], ["Acrobot-v1", 700]]})
    given = [(settings(trial)["env.id"], settings(trial)["total_steps"]) for trial in together]
    assert given == [("CartPole-v1", "500"), ("Acrobot-v1", "700")]
    assert [trial.name for trial in together] == ["CartPole-v1-total_steps-500", "Acrobot-v1-total_steps-700"]


def test_random_draws_follow_from_the_seed_and_more_of_them_begin_with_the_same_ones(tmp_path: Path) -> None:
    vary = {
        "ppo.learning_rate": {"log_uniform": ["1e-4", 0.1]},
        "ppo.entropy_cost": {"uniform": [0, 0.02]},
        "ppo.epochs": {"integers": [2, 5]},
        "net.hidden_size": [16, 32],
    }
    three, five = (planned(tmp_path, vary, samples=n, seed=7, seeds=[1]) for n in (3, 5))
    assert three == five[:3] != planned(tmp_path, vary, samples=3, seed=8, seeds=[1])
    assert [trial.name for trial in three] == [f"sample-00{n}-seed-1" for n in (1, 2, 3)]
    for trial in five:
        assert 1e-4 <= float(settings(trial)["ppo.learning_rate"]) <= 0.1
        assert int(settings(trial)["ppo.epochs"]) in range(2, 6)
        assert settings(trial)["net.hidden_size"] in ("16", "32")

    rates = [read_dimension("a", {"log_uniform": [1e-4, 1.0]}, "").at(chance)["a"] for chance in (0, 0.5, 0.9999)]
    assert rates == pytest.approx([1e-4, 1e-2, 1.0], rel=0.01)
    drawn = [values["a"] for values in draw_samples([read_dimension("a", {"integers": [1, 4]}, "")], 4, 1)]
    assert sorted(drawn) == [1, 2, 3, 4], "each differs from those before"


def test_settings_of_one_environment_are_left_out_of_runs_in_another(tmp_path: Path) -> None:
    vary, common = {"env": ["PongNoFrameskip-v4", "CartPole-v1"]}, {"algo": "ppo", "env.frame_stack": 2}
    pong, pole = planned(tmp_path, vary, settings=common)
    assert (settings(pong)["env.frame_stack"], "env.frame_stack" in settings(pole)) == ("2", False)


SEED = {"seed": [1]}


@pytest.mark.parametrize(
    ("place", "vary", "parts"),
    [
        ("vary", {}, {}),
        ("sead", SEED, {"sead": 1}),
        ("vary: seed", SEED, {"seeds": [2]}),
        ("vary: seed", {"seed": []}, {}),
        ("vary: seed: integers", {"seed": {"integers": [2, 1]}}, {}),
        ("vary: seed, algo", {"seed, algo": [[1]]}, {}),
        ("vary: ppo.epochs", {"ppo.epochs": [1, "many"]}, {}),
        ("vary: net.torso", {"net.torso": ["tests.unit.test_networks:SHORT"]}, {}),
        ("vary: (algo a2c, ppo.epochs 1) and (algo a2c, ppo.epochs 2)", {"algo": ["a2c"], "ppo.epochs": [1, 2]}, {}),
        ("local.placement", {"local.placement": ["serve"], "preset": ["classic-ppo"]}, {}),
        ("samples", {"ppo.epochs": {"integers": [1, 2]}}, {"samples": 3}),
    ],
)
def test_a_file_that_cannot_be_run_is_refused_before_anything_starts(
    tmp_path: Path, place: str, vary: dict[str, Any], parts: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(tmp_path, vary, **parts)
    rest = str(caught.value).removeprefix(f"{tmp_path}/lr.yaml: {place}")
    assert rest[:1] in (":", " "), caught.value


def test_a_missing_parent_and_runs_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refuses(value="base"):
        planned(tmp_path, SEED, **{"from": "base"})
    monkeypatch.setattr("zerobeast.plan.resolution.fetch_spec", lambda _: ENV)
    with pytest.raises(ConfigError, match=r"env\.kwargs"):
        planned(tmp_path, {"env.kwargs": [{"a": 1}, {"a": [1]}]})


def test_a_long_name_is_cut_and_stays_unlike_others(tmp_path: Path) -> None:
    vary = {f"net.{name}": [1, 2] for name in ("hidden_size", "core_width", "max_parameters")}
    vary |= {"learner.unroll_length": [64, 65], "actor.env_groups": [2, 3], "envserver.step_timeout_s": [61, 62]}
    found = [trial.name for trial in planned(tmp_path, vary, seeds=[1234567890])]
    assert (len(set(found)), max(map(len, found)) <= 100) == (64, True)
    same = GivenValue("net.torso", "tests.unit.test_networks:SHORT", "flag --net.torso")  # confirms what is imported
    assert planned(tmp_path, {"net.torso": [same.value, "mlp"]}, same)[0].name.startswith("torso-tests.unit")


def test_runs_share_no_core_and_take_turns_on_the_gpus_that_are_visible() -> None:
    assert divide_cores(PAIRS, 8, None, None) == PAIRS
    assert divide_cores(PAIRS, 8, None, 2) == [(0, 4, 1, 5), (2, 6, 3, 7)]
    assert divide_cores(PAIRS, 8, 2, 1) == divide_cores(PAIRS, 4, None, None) == PAIRS[:2]
    assert divide_cores(PAIRS, 8, 8, None) == [(0,), (4,), (1,), (5,), (2,), (6,), (3,), (7,)]
    for parallel, each in ((3, None), (None, 3), (2, 2)):
        with refuses():
            divide_cores([(0,), (1,)], 2, parallel, each)
    assert [gpu_of(n, {"CUDA_VISIBLE_DEVICES": "2,5"})["CUDA_VISIBLE_DEVICES"] for n in range(3)] == ["2", "5", "2"]
    assert gpu_of(1, {"CUDA_VISIBLE_DEVICES": ""}) == {}


def test_a_journal_goes_on_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    with open_journal(tmp_path) as journal:
        journal.note_start("a", ("--seed=1",), (0,))
        journal.note_end("a", DONE, 2.0)
        journal.note_start("b", ("--seed=2",), (1,))
    with (tmp_path / JOURNAL).open("a") as file:
        file.write('{"event": "end", "run": "b", "co')
    with open_journal(tmp_path) as journal:
        assert journal.done == {"a"}
        with pytest.raises(ConfigError), open_journal(tmp_path):
            pytest.fail("it runs already")
        for ending in (Ending(1, "it broke"), Ending(143)):
            journal.note_end("b", ending, 3.0)
    with open_journal(tmp_path) as journal:
        assert journal.done == {"a"}
    assert all(json.loads(line) for line in (tmp_path / JOURNAL).read_text().splitlines())


def test_a_sweep_is_seen_among_runs_and_may_hold_the_newest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_journal(folder := tmp_path / "lr") as journal:
        journal.note_begin(3)
        journal.note_end("a", DONE, 2.0)
        assert summarize_sweep(folder) == "lr/: sweep, 1 of 3 runs done, running"
    assert summarize_sweep(folder) == "lr/: sweep, 1 of 3 runs done, stopped"
    assert runs.main(["--root", str(tmp_path)]) == 0
    assert summarize_sweep(folder) in capsys.readouterr().out
    for number, run in enumerate(("old", "lr/seed-1", "other/b")):
        status = tmp_path / run / "services" / "learner-0.json"
        status.parent.mkdir(parents=True)
        status.touch()
        os.utime(status, (number, number))
    (folder / "seed-1" / "config.yaml").touch()
    assert runs.main(["--root", str(tmp_path), "--json"]) == 0
    assert [run["name"] for run in json.loads(capsys.readouterr().out)] == ["lr/seed-1"]
    assert find_newest(tmp_path) == folder / "seed-1"
    (folder / JOURNAL).write_text('{"event": "begin", "runs": 1e999}\n')
    assert runs.main(["--root", str(tmp_path)]) == 0
    assert JOURNAL in capsys.readouterr().err
    with refuses(), open_journal(folder):
        pytest.fail("an entry that is no journal's")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / JOURNAL).touch()
    with refuses():
        watch.main(["empty", "--root", str(tmp_path)])


def test_a_folder_of_something_else_and_other_settings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    with refuses(), open_journal(tmp_path):
        pytest.fail("it has something else in it")
    begun = planned(tmp_path, seeds=[1])
    with open_journal(tmp_path / "lr") as journal:
        journal.note_start("seed-1", begun[0].flags, (0,))
        journal.refuse_changes(begun)
        with pytest.raises(ConfigError, match=r"--total_steps=1000.*--total_steps=7"):
            journal.refuse_changes(planned(tmp_path, seeds=[1], settings={**BASE, "total_steps": 7}))
        (tmp_path / "lr" / "seed-2").mkdir()
        with pytest.raises(ConfigError, match="seed-2"):
            journal.refuse_changes(planned(tmp_path, seeds=[1, 2]))


def test_a_dry_run_lists_the_runs_and_starts_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned(tmp_path, seeds=[1, 2])
    assert main([str(tmp_path / "lr.yaml"), "--dry_run", "--parallel", "1"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["seed-1", "seed-2"]
    assert os.listdir(tmp_path) == ["lr.yaml"]
    with refuses():
        main([str(tmp_path / "lr.yaml"), "--seeds", "1"])


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that were trained, without a process; that of "b" ends, and then its evaluator fails."""
    names: list[str] = []

    def begin(request: Request, _environ: Any) -> Any:
        name, root = request.value("name"), request.value("root")
        names.append(name)
        save_run(Path(root), name, {100: 1.0}, {100: 1.0}, seed=len(names))
        ending = Ending(1, "it broke", finished=True) if name == "b" else DONE
        return SimpleNamespace(wait=lambda _timeout: True, ending=ending)

    monkeypatch.setattr(runner, "resolve_run", lambda request, *_, **__: request)
    monkeypatch.setattr(runner, "StartedRun", begin)
    return names


TRIALS = [Trial(name, {}) for name in "abc"]


def test_each_run_has_a_free_place_and_one_that_is_not_done_runs_again(tmp_path: Path, trained: list[str]) -> None:
    def swept(*places: Place) -> Runner:
        with open_journal(tmp_path / "lr") as journal:
            found = Runner(tmp_path / "lr", places, journal, lambda _: None)
            assert found.run(TRIALS) == 0
            return found

    assert swept((0,), (1,)).failed == {"b": "it broke"}
    entries = map(json.loads, (tmp_path / "lr" / JOURNAL).read_text().splitlines())
    starts = [(entry["run"], entry["cpus"]) for entry in entries if entry["event"] == "start"]
    assert sorted(starts[:2]) == [("a", [0]), ("b", [1])]
    shutil.rmtree(tmp_path / "lr" / "b")
    swept((0,))
    assert trained == ["a", "b", "c", "b"]


class Asked:
    """A run that trains until it has been asked to end so many times."""

    config = SimpleNamespace(total_steps=1000)

    def __init__(self, times: int, code: int, while_it_trains: Callable[[], None] = lambda: None) -> None:
        self.times, self.end, self.while_it_trains = times, Ending(code, finished=not code), while_it_trains
        self.asked = list[tuple[int, ...]]()  #: signals, and nothing to stop it

    @property
    def ending(self) -> Ending | None:
        return self.end if len(self.asked) >= self.times else None

    def wait(self, _timeout: float) -> bool:
        self.while_it_trains()
        return self.ending is not None

    def ask(self, *signals: int) -> None:
        self.asked.append(signals)

    def stop(self) -> None:
        self.asked.append(())


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], Asked]]:
    """How to start each run, by its name."""
    begin = dict[str, Callable[[], Asked]]()
    monkeypatch.setattr(runner, "resolve_run", lambda request, *_, **__: request)
    monkeypatch.setattr(runner, "StartedRun", lambda request, _environ: begin[request.value("name")]())
    monkeypatch.setattr(runner, "TURN_S", 0.0)
    monkeypatch.setattr(runner, "LINES_S", 0.0)
    return begin


@pytest.mark.parametrize("early", [False, True], ids=["it trains", "it starts"])
def test_a_signal_ends_all_runs_and_another_one_at_once_and_they_go_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: dict[str, Callable[[], Asked]], early: bool
) -> None:
    monkeypatch.setattr(signals, "AT_ONCE_S", 0.0)
    interrupt = partial(os.kill, os.getpid(), signal.SIGINT)
    a, b, said = Asked(1, 0), Asked(2, 130, interrupt), list[str]()
    begun |= {"a": lambda: a, "b": lambda: (early and interrupt(), b)[1]}
    with open_journal(tmp_path / "lr") as journal:
        policy = tmp_path / "lr" / "a" / run_files.TO_EVALUATE / "40.pt"
        policy.parent.mkdir(parents=True)
        policy.touch()
        found = Runner(tmp_path / "lr", [(0,), (1,)], journal, said.append)
        assert found.run(TRIALS) == signal.SIGINT
        assert (found.failed, journal.done) == ({}, set()), "the last policy of the first is not evaluated yet"
    assert (a.asked[0], b.asked) == ((signal.SIGTERM,), [(signal.SIGTERM,), (signal.SIGINT, signal.SIGINT)])
    assert any("a:" in line and "b:" in line for line in said) != early, "how far both are"


def test_a_run_that_cannot_start_fails_and_others_go_on(tmp_path: Path, begun: dict[str, Callable[[], Asked]]) -> None:
    begun |= {"a": partial(read_sweep, tmp_path / "none", []), "b": lambda: {}["key"], "c": lambda: Asked(0, 0)}
    with open_journal(tmp_path / "lr") as journal:
        found = Runner(tmp_path / "lr", [(0,)], journal, lambda _: None)
        assert found.run(TRIALS) == 0
        assert (found.failed.keys(), journal.done) == ({"a", "b"}, {"c"})
    entries = map(json.loads, (tmp_path / "lr" / JOURNAL).read_text().splitlines())
    assert [entry["code"] for entry in entries if entry["event"] == "end"] == [2, 1, 0]


def test_no_run_outlives_a_sweep_that_cannot_go_on(tmp_path: Path, begun: dict[str, Callable[[], Asked]]) -> None:
    a, reads = Asked(1, 143), iter([None])
    begun["a"] = lambda: a
    with open_journal(tmp_path / "lr") as journal, pytest.raises(StopIteration):
        Runner(tmp_path / "lr", [(0,), (1,)], journal, lambda _: next(reads)).run(TRIALS)
    assert a.asked == [(signal.SIGTERM,), ()]


def test_a_run_that_is_gone_is_trained_again_and_one_that_cannot_be_read_is_left_out(
    tmp_path: Path, trained: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    planned(tmp_path, seeds=[1, 2, 3])
    file = str(tmp_path / "lr.yaml")
    assert main([file, "--parallel", "1", "--root", str(tmp_path)]) == 0
    names = ["seed-1", "seed-2", "seed-3"]
    found = zb.sweep(file, parallel=1, root=tmp_path)
    assert [(run and run.name, outcome) for _, run, outcome in found] == [(each, "done") for each in names]
    shutil.rmtree(tmp_path / "lr" / "seed-2")
    (tmp_path / "lr" / "seed-1" / "config.yaml").write_text("[")
    capsys.readouterr()
    assert main([file, "--parallel", "1", "--root", str(tmp_path)]) == 0
    assert trained == [*names, "seed-2"]
    said = capsys.readouterr()
    assert ("seed-1" in said.err, "seed-2" in said.out) == (True, True), "left out, and trained again"


def test_arguments_that_vary_are_added_to_those_of_all_runs_and_of_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerobeast.plan.resolution.fetch_spec", lambda _: ENV)
    vary = {"env.kwargs": [{"width": 32}, {"target": None}]}
    given = {**BASE, "env.kwargs": {"target": 7}}
    found = planned(tmp_path, vary, settings=given)
    assert [trial.name for trial in found] == ["kwargs-width-32", "kwargs-target-null"]
    assert [json.loads(settings(trial)["env.kwargs"]) for trial in found] == [{"target": 7, "width": 32}, {}]
    tree = {"env": {"kwargs": {"target": 1, "size": 2}}}
    parent = Parent("base", tmp_path / "config.yaml", tree, {"counters": {"agent_steps": 9}})
    monkeypatch.setattr(trials, "parent_of", lambda _: parent)
    found = planned(tmp_path, vary, settings=given, **{"from": "base"})
    assert settings(found[1])["parent.agent_steps"] == "9", "a parent that has trained on is another one"
    assert json.loads(settings(found[1])["env.kwargs"]) == {"target": None, "size": 2}, "over those of the parent"
