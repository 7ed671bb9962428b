"""Which policies an evaluator keeps, which of its results, and how long an end waits for it; nothing is played here."""

import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.build.learners import ENV, run_config
from tests.helpers import poll, wait_until
from zerobeast.common.config.process import Instance
from zerobeast.common.errors import ConfigError, PeerLost
from zerobeast.common.files import evaluations, run_files
from zerobeast.common.files.evaluation_queue import STEPS, STILL_S, EvaluationQueue
from zerobeast.common.settings import RunConfig
from zerobeast.playing.evaluation import Evaluation
from zerobeast.services.evaluator import service
from zerobeast.services.evaluator.service import Evaluator
from zerobeast.services.learner.checkpoint import Checkpoints
from zerobeast.services.learner.update import Trainer

Watch = Callable[[list[Any], int], None]


class Playing:
    """Evaluates policies of a run: `game` stands for the episodes of each, and returns their mean return."""

    def __init__(self, config: RunConfig) -> None:
        self.config, self.folder = config, config.folder
        self.queue = self.folder / run_files.TO_EVALUATE
        self.queue.mkdir(parents=True)
        self.state = {**Trainer(config, torch.device("cpu"), ENV).state(), "statistics": {}, "rollouts": {}}
        self.game: Callable[[int, Watch], float] = lambda _steps, _watch: 1.0

    def play(self, policy: Any, *_args: Any, watch: Watch, **_options: Any) -> Evaluation:
        """Stands for `zerobeast.playing.play.play`."""
        score = self.game(policy.agent_steps, watch)
        return Evaluation(self.config.env.id, [score], [1], True, 0, 1, policy.agent_steps)

    def offer(self, steps: int) -> None:
        self.state["counters"]["agent_steps"] = int(self.state["model"]["agent_steps"].fill_(steps))
        Checkpoints(self.folder).save(self.state)
        (self.folder / run_files.CHECKPOINT).rename(self.queue / f"{steps}.pt")

    def evaluate(self, steps: Iterable[int]) -> dict[str, Any]:
        """Evaluate policies of these steps, until none waits; returns the last page."""
        with closing(Evaluator(self.config, Instance(env_server="ipc:///nowhere"))) as evaluator:
            evaluator.open()
            for each in steps:
                self.offer(each)
            waiting = partial(run_files.kept, self.folder, run_files.TO_EVALUATE)
            wait_until(lambda: poll(evaluator, 0.01) or evaluator.tick(0.0) or not waiting())
            return evaluator.report()

    def scores(self) -> dict[int, float]:
        return evaluations.scores(evaluations.read(self.folder), [self.config.env.id], "greedy")

    @property
    def best(self) -> int:
        return int(torch.load(self.folder / run_files.BEST_CHECKPOINT)["counters"]["agent_steps"])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Playing:
    playing = Playing(run_config(tmp_path))
    monkeypatch.setattr("zerobeast.playing.play.play", playing.play)
    monkeypatch.setattr(service, "LOOK_PERIOD_S", 0.0)
    monkeypatch.setattr(service, "DISK_S", 0.0)
    return playing


def test_a_policy_is_the_best_if_it_beats_the_one_whose_checkpoint_there_is(run: Playing) -> None:
    others = Evaluation(run.config.env.id, [9.0], [1], False, 0, 1, 10).row()  # from before other actions were set
    evaluations.append(run.folder, [others])
    scores: dict[int, float] = {}
    run.game = lambda steps, _watch: scores[steps]
    best = run.folder / run_files.BEST_CHECKPOINT
    for found, kept in (
        ({10: 3.0, 20: 2.0}, 10),
        ({30: 1.0, 40: 1.234567891, 50: 1.1}, 40),
        ({40: 1.234567891}, 40),
        ({60: 0.5}, 60),
    ):
        if 30 in found:
            best.unlink()
        if 60 in found:
            best.write_text("damaged")
        scores |= found
        run.evaluate(found)
        assert run.best == kept
    assert best.with_name(f"{best.name}.old").exists()
    rows = evaluations.read(run.folder)
    assert [(row["agent_steps"], row["actions"]) for row in rows][:2] == [(10, "sampled"), (10, "greedy")]


@pytest.mark.parametrize("damages", [True, False], ids=["a table that cannot be read", "an env-server that fails"])
def test_a_policy_that_cannot_be_evaluated_costs_tries_and_not_the_run(run: Playing, *, damages: bool) -> None:
    def game(_steps: int, watch: Watch) -> float:
        watch([], 7)
        if not damages:
            raise PeerLost("env-server: no answer for 660 s")
        (run.folder / run_files.EVALUATIONS).write_text("agent_steps\nx\n")
        return 3.0

    run.game = game
    assert run.evaluate([10])["evaluations_failed"] >= service.MAX_TRIES


def test_a_policy_whose_row_cannot_be_written_is_played_until_it_can_and_that_is_no_progress(
    run: Playing, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, append, shown = [ConfigError("No space left on device")] * 3, evaluations.append, set[tuple[int, int]]()

    def game(_steps: int, watch: Watch) -> float:
        watch([], 7)
        return 1.0

    def tried(*given: Any) -> None:
        if failures:
            raise failures.pop()
        append(*given)

    run.game = game
    monkeypatch.setattr(EvaluationQueue, "report_progress", lambda _self, progress, _now: shown.add(progress))
    monkeypatch.setattr(evaluations, "append", tried)
    assert run.evaluate([10])["agent_steps"] == 4 * 7
    assert run.scores() == {10: 1.0}
    assert (1, 7) in shown <= {(0, 0), (0, 7), (1, 7)}


STEP_S = 60.0
STILL = STILL_S + STEPS * STEP_S


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    queue = tmp_path / run_files.TO_EVALUATE
    queue.mkdir()
    os.utime(queue, (0, 0))
    return tmp_path


def offer(folder: Path, *steps: int) -> None:
    for each in steps:
        (folder / run_files.TO_EVALUATE / f"{each}.pt").touch()


def test_nothing_is_awaited_if_no_policy_waits(folder: Path) -> None:
    queue = EvaluationQueue(folder, STEP_S)
    assert [queue.waits(now) for now in (0.0, 10 * STILL)] == [False] * 2
    offer(folder, 5)
    assert queue.waits(10 * STILL), "a queue that was empty is not one without progress"
    shutil.rmtree(folder / run_files.TO_EVALUATE)
    without = EvaluationQueue(folder, STEP_S)
    assert (without.waits(0.0), without.waits(10 * STILL), without.trouble) == (False, False, "")


def test_an_evaluator_is_awaited_as_long_as_it_gets_on(folder: Path) -> None:
    offer(folder, 5, 9)
    queue, evaluator = EvaluationQueue(folder, STEP_S), EvaluationQueue(folder, STEP_S)
    for turn in range(1, 100):
        os.utime(folder / run_files.TO_EVALUATE, (turn, turn))
        evaluator.report_progress((0, turn), 3600.0 * turn)
        assert queue.waits(STILL / 2 * turn), turn
    assert not queue.trouble
    now = STILL / 2 * 99
    assert [queue.waits(now + wait) for wait in (STILL - 1, STILL)] == [True, False]
    assert f"2 in {folder}/evaluate" in queue.trouble
    (folder / run_files.TO_EVALUATE / "5.pt").unlink()
    assert queue.waits(now + STILL + 1)
    assert not queue.trouble


def test_progress_is_more_policies_or_more_steps_of_one_and_is_shown_rarely(folder: Path) -> None:
    place, queue = folder / run_files.TO_EVALUATE, EvaluationQueue(folder, STEP_S)
    shown = []
    for progress, now in [((0, 0), 0.0), ((0, 7), 1.0), ((0, 8), 2.0), ((0, 3), 20.0), ((0, 9), 40.0), ((1, 0), 60.0)]:
        os.utime(place, (0, 0))
        queue.report_progress(progress, now)
        shown.append(place.stat().st_mtime > 0)
    assert shown == [False, True, False, False, True, True]


FIRST = {"agent_steps": 100, "env": "CartPole-v1", "mean_return": 12.5, "stderr_return": None, "returns": [10.0, 15.0]}
LATER = {**FIRST, "agent_steps": 200, "info/is_success": 0.5, "lengths": [3, 4], "mean_return": 1e-7}


def test_a_table_grows_by_rows_and_by_names(tmp_path: Path) -> None:
    assert evaluations.read(tmp_path) == []
    for row in (FIRST, LATER):
        evaluations.append(tmp_path, [row])
    first, later = evaluations.read(tmp_path)
    assert first == {**FIRST, "info/is_success": None, "lengths": []}
    assert later == LATER


def test_an_evaluation_that_is_repeated_takes_the_place_of_the_earlier_one(tmp_path: Path) -> None:
    other = {**FIRST, "env": "B", "level": "rare", "mean_return": 7.5}
    evaluations.append(tmp_path, [FIRST])  # then the process was killed
    evaluations.append(tmp_path, [{**FIRST, "mean_return": 2.5, "returns": [0.5] * 20_000}, other])
    rows = [*evaluations.read(tmp_path), LATER]
    assert evaluations.scores(rows, ["CartPole-v1", "B"], "") == {100: 5.0, 200: 1e-7}
    assert evaluations.scores(rows, [""], "") == evaluations.scores(rows, ["CartPole-v1"], "") == {100: 2.5, 200: 1e-7}
    assert evaluations.scores(rows, [evaluations.first_level(", rare,CartPole-v1")], "") == {100: 7.5}
