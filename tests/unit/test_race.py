"""`beast bench race` without its runs: when a race ends, which results stand, who is stopped when, and the table."""

import itertools
import json
import math
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.build.errors import refuses
from zerobeast.common.errors import BeastError
from zerobeast_tools.bench import race
from zerobeast_tools.bench.peers.process import PeerFailed
from zerobeast_tools.bench.peers.runners.referee import Referee, play_whole
from zerobeast_tools.bench.race.field import TASKS, pick
from zerobeast_tools.bench.race.ours import judge
from zerobeast_tools.bench.race.results import (
    Result,
    limit_of_others,
    load_result,
    parse_outcome,
    save_result,
    table,
    when,
)

HERE = {"cpu": "Z80", "cores": 2.0}
CARTPOLE = TASKS["cartpole"]


def terms(**changed: float) -> Namespace:
    return Namespace(**{"started": 10.0, "limit": 100.0, "every": 1000, "threshold": 50.0, "episodes": 2, **changed})


def result(seconds: float, *, ended: Any = "threshold", name: str = "sb3", seed: int = 1) -> Result:
    return Result("CartPole-v1, 475", name, seed, "PPO", "1.0", ended, seconds, 1000, 1.0, machine=HERE)


def referee_of(clock: Iterator[float], capsys: pytest.CaptureFixture[str], scores: list[float]) -> dict[str, Any]:
    """The outcome of a race in which 400 agent steps are taken between calls."""
    referee, steps = Referee(terms(), clock.__next__), itertools.count(400, 400)
    while scores and not referee.saw(next(steps), lambda: scores.pop(0)):
        pass
    capsys.readouterr()
    referee.report("1.0")
    return parse_outcome(f"noise\n{capsys.readouterr().out}noise")


def test_evaluations_cost_no_time_and_the_first_that_reaches_the_threshold_ends_the_race(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = iter([20.0, 30.0, 40.0, 40.0, 90.0, 100.0, 110.0, 110.0, 200.0, 999.0])
    found = referee_of(clock, capsys, [49.0, 50.0, 0.0])
    assert found == {"ended": "threshold", "seconds": 50.0, "agent_steps": 2000, "score": 50.0, "version": "1.0"}


def test_a_race_ends_at_its_limit(capsys: pytest.CaptureFixture[str]) -> None:
    found = referee_of(iter([20.0, 110.0, 110.5]), capsys, [0.0])
    assert (found["ended"], found["seconds"], found["agent_steps"]) == ("limit", 100.5, 1200)


class Lives:
    """An environment whose episodes have two lives; the n-th episode has the score n."""

    def __init__(self) -> None:
        self._lost, self.seeds = 0, list[dict[str, int]]()

    def reset(self, **seed: int) -> tuple[int, dict[str, Any]]:
        self.seeds.append(seed)
        return 0, {}

    def step(self, _action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._lost += 1
        return 0, 9.0, True, False, {} if self._lost % 2 else {"episode": {"r": self._lost / 2}}


def test_an_evaluation_plays_whole_episodes_of_fixed_seeds() -> None:
    env = Lives()
    assert play_whole(env, lambda _: 0, terms(eval_seed=7)) == 1.5
    assert env.seeds == [{"seed": 7}, *[{}] * 4]


def test_our_time_is_that_of_the_policy_that_reached_the_threshold() -> None:
    rows = [{"mean_return": score, "elapsed_s": s, "agent_steps": 10 * s} for score, s in ((9, 5), (475, 8), (500, 9))]
    found = judge(rows, CARTPOLE, 2.0, 60.0, whole=False)
    assert (found["ended"], found["seconds"], found["agent_steps"]) == ("threshold", 10.0, 80)
    assert judge(rows[:1], CARTPOLE, 2.0, 60.0, whole=False)["ended"] == "limit"
    assert judge(rows[:1], CARTPOLE, 2.0, 60.0, whole=True) | {"version": ""} == {
        "ended": "script",
        "seconds": 7.0,
        "agent_steps": 50,
        "score": 9,
        "version": "",
    }
    assert judge([], CARTPOLE, math.inf, 60.0, whole=False)["seconds"] == 60.0


def test_others_may_take_three_times_our_median_unless_we_do_not_get_there() -> None:
    assert limit_of_others([result(10), result(30), result(20)], 1000.0) == 60.0
    assert limit_of_others([result(10), result(400)], 500.0) == 500.0
    assert limit_of_others([result(10), *[result(30, ended="limit")] * 2], 500.0) == 500.0
    assert limit_of_others([], 500.0) == 500.0


def test_the_table_shows_median_and_worst_and_what_was_missed() -> None:
    missed = [result(60.4, ended="limit"), result(20), result(30)]
    failed = result(0.0, ended="failure", name="rllib")._replace(failure="no a|b")
    ours = [result(seconds, name="zerobeast") for seconds in (10, 1500, 20)]
    ended = [result(70.0, ended="script", name="cleanrl-ppo")]
    cells = [line.strip("| ").split(" | ") for line in table([*ours, *missed, failed, *ended]).splitlines()[2:]]
    assert [row[1] for row in cells] == ["**zerobeast**", "sb3 1.0", "rllib 1.0", "cleanrl-ppo 1.0"]
    assert cells[0][3:] == ["20", "1,500", "1,000", "10, 1,500, 20"]
    assert cells[1][3:] == ["30", "not within 60 s", "1,000", "-, 20, 30"]
    assert cells[2][3] == "failed: no a\\|b"
    assert cells[3][3] == "not within 70 s, 1,000 steps"


def test_the_note_names_every_commit_and_day() -> None:
    made = [("a", "2026-02-02"), ("b", "2026-02-01"), ("a", "2026-02-02")]
    results = [result(1.0)._replace(commit=commit, date=date) for commit, date in made]
    assert when(results) == "commit a, b; 2026-02-01, 2026-02-02"


def test_a_result_stands_on_its_machine_alone(tmp_path: Path) -> None:
    path = race.result_path(tmp_path, "cartpole", "sb3", 1)
    assert load_result(path, HERE, 9.0) is None
    save_result(path, result(5.0))
    assert load_result(path, HERE, 9.0) == result(5.0)
    with refuses(str(path), value=HERE):
        load_result(path, HERE | {"cores": 4.0}, 9.0)
    path.write_text(json.dumps({"frob": 1}))
    with refuses(str(path)):
        load_result(path, HERE, 9.0)


def test_a_run_that_was_stopped_stands_for_no_longer_limit(tmp_path: Path) -> None:
    path, stopped = tmp_path / "sb3-1.json", result(5.0, ended="limit")
    save_result(path, stopped)
    assert [load_result(path, HERE, limit_s) for limit_s in (4.0, 5.0, 6.0)] == [stopped, stopped, None]


def test_what_is_finished_is_not_run_again_and_what_failed_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run: list[tuple[str, int, float]] = []

    def ours(_task: Any, seed: int, _eval_seed: int, limit_s: float, _log: Path) -> dict[str, Any]:
        run.append(("zerobeast", seed, limit_s))
        return {"ended": "threshold", "seconds": 10.0 * seed}

    def peer(_task: Any, entry: race.Entry, seed: int, limit_s: float, *_: Any) -> dict[str, Any]:
        run.append((entry.name, seed, limit_s))
        if entry.name == "sb3":
            raise PeerFailed("cannot be installed")
        return {"ended": "limit", "seconds": limit_s}

    monkeypatch.setattr(race, "race_ours", ours)
    monkeypatch.setattr(race, "_race_peer", peer)
    argv = [
        "--tasks",
        "cartpole",
        "--only",
        "zerobeast,sb3,rllib,cleanrl-ppo",
        "--root",
        str(tmp_path),
        "--limit",
        "99",
    ]
    assert race.main([*argv, "--seeds", "1,2"]) == 1
    others = [("sb3", 1, 45.0), ("rllib", 1, 45.0), ("rllib", 2, 45.0)]
    assert run == [("zerobeast", 1, 99.0), ("zerobeast", 2, 99.0), *others]
    assert "cleanrl-ppo: left out" in capsys.readouterr().out
    run.clear()
    assert race.main([*argv, "--seeds", "1,2"]) == 1
    assert run == others[:1]
    run.clear()
    race.main([*argv, "--seeds", "1", "--fresh", "--json", str(tmp_path / "all.json")])
    assert [name for name, _, _ in run] == ["zerobeast", "sb3", "rllib"]
    assert len(json.loads((tmp_path / "all.json").read_text())["results"]) == 3


OUTCOME = {"reached": True, "ended": "threshold", "seconds": 5.0, "agent_steps": 7, "score": 9.0, "version": "1"}


@pytest.mark.parametrize(("written", "ended"), [(json.dumps(OUTCOME), "threshold"), ("", "failure")])
def test_an_outcome_stands_if_a_package_crashes_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, ended: str
) -> None:
    def run_child(_command: Any, log: Path, *_: Any) -> str:
        log.write_text(f"{written}\nterminate called\n")
        raise PeerFailed("killed by SIGABRT")

    monkeypatch.setattr(race, "prepare", lambda *_: Path("python"))
    monkeypatch.setattr(race, "run_child", run_child)
    plan = race.Plan((1,), ("sb3",), 9.0, tmp_path, tmp_path, cleanrl=None, fresh=False, machine=HERE, commit=None)
    assert [each.ended for each in race.race(CARTPOLE, plan)] == [ended]


def test_wrong_flags_and_outcomes_are_refused(tmp_path: Path) -> None:
    assert pick("--tasks", "pong, cartpole", tuple(TASKS)) == ["cartpole", "pong"]
    for text in ("", "tetris"):
        with refuses("--tasks", value=text):
            pick("--tasks", text, tuple(TASKS))
    for seeds in ("one", "-1", "1,1", ""):
        with refuses("--seeds", value=seeds):
            race.main([f"--seeds={seeds}"])
    for limit in ("nan", "-3"):
        with pytest.raises(BeastError, match="--limit"):
            race.main([f"--limit={limit}"])
    with refuses("--only", value="cleanrl-ppo"):
        race.main(["--only", "cleanrl-ppo"])
    with refuses("--cleanrl", value=str(tmp_path)):
        race.main(["--cleanrl", str(tmp_path)])
    with pytest.raises(BeastError):
        parse_outcome("Killed\n")
