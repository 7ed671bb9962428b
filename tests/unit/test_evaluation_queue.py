"""How long an end waits for the evaluator of a run."""

import os
import shutil
from pathlib import Path

import pytest

from zerobeast.common.files import run_files
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
