"""The files between learner and evaluator: how long an end waits for policies in the queue, and a table that grows."""

import os
import shutil
from pathlib import Path

import pytest

from zerobeast.common.files import evaluations, run_files
from zerobeast.common.files.evaluation_queue import STEPS, STILL_S, EvaluationQueue

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
