"""Checkpoints under other names: at which steps, which stay, and that the last policy is evaluated once."""

from pathlib import Path
from typing import Any

import pytest
import torch

from zerobeast.common.errors import DiskError
from zerobeast.common.files import evaluations, run_files
from zerobeast.common.settings import RunConfig
from zerobeast.services.learner.checkpoint import CHECKPOINT_FORMAT
from zerobeast.services.learner.meters import Meters
from zerobeast.services.learner.numbered import MAX_WAITING, NumberedCheckpoints


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / run_files.CHECKPOINT).write_text("newest")
    learner = {"checkpoint_every_steps": 30, "keep_checkpoints": 2}
    tree = {"name": "x", "root": str(tmp_path), "total_steps": 100, "learner": learner, "evaluate": {"times": 2}}
    return RunConfig.model_validate(tree)


def steps(config: RunConfig, kind: str) -> list[int]:
    return [number for number, _ in run_files.kept(config.folder, kind)]


def save(numbered: NumberedCheckpoints, *at: int, finished: bool = False) -> None:
    for step in at:
        numbered.saved(step, score=float(step), finished=finished)


def row(at: int, **more: Any) -> dict[str, Any]:
    """An evaluation."""
    return {"agent_steps": at, "env": "x", "mean_return": at, **more}


def test_each_milestone_is_met_once_and_the_end_is_always_evaluated(config: RunConfig) -> None:
    numbered, saved = NumberedCheckpoints(config, 0), list[int]()
    numbered.plan(31)
    assert [numbered.due(at) for at in (32, 50)] == [False, True], "one that cannot be written is not tried at each"
    numbered.plan(0)
    for at in range(7, 106, 7):
        at = min(at, 100)
        if numbered.due(at):
            save(numbered, at)
            saved.append(at)
    assert saved == [35, 56, 63, 91], "30, 50, 60 and 90; the evaluation at 100 is that of the end"
    save(numbered, 100, finished=True)
    assert steps(config, run_files.CHECKPOINTS) == [63, 91]
    assert steps(config, run_files.TO_EVALUATE) == [56, 100]
    assert not (config.folder / run_files.BEST_CHECKPOINT).exists(), "the evaluator judges"


@pytest.mark.parametrize(("actions", "again"), [("greedy", []), ("sampled", [100])])
def test_other_actions_are_evaluated_of_a_finished_run(config: RunConfig, actions: str, again: list[int]) -> None:
    evaluations.append(config.folder, [row(100, actions="greedy")])
    how = config.evaluate.model_copy(update={"actions": actions})
    save(NumberedCheckpoints(config.model_copy(update={"evaluate": how}), 100), 100, finished=True)
    assert steps(config, run_files.TO_EVALUATE) == again


def test_without_an_evaluator_the_queue_is_bounded_but_for_the_last_policy(config: RunConfig) -> None:
    config = config.model_copy(update={"total_steps": 10**6, "evaluate": type(config.evaluate)(every_steps=1)})
    numbered = NumberedCheckpoints(config, 0)
    save(numbered, *range(1, MAX_WAITING + 10))
    save(numbered, 10**6, finished=True)
    assert steps(config, run_files.TO_EVALUATE) == [*range(1, MAX_WAITING + 1), 10**6]


def test_without_evaluations_the_best_training_return_is_kept(config: RunConfig) -> None:
    config = config.model_copy(update={"evaluate": type(config.evaluate)()})
    best = config.folder / run_files.BEST_CHECKPOINT
    for start, scores, kept in [
        (0, {5: None, 10: 3.0, 15: 2.0, 20: 4.0, 25: 4.0}, 20),
        (25, {30: 3.5}, 20),  # the best one's score is its own, whatever checkpoint a killed learner continues from
        (10, {15: 1.0}, 15),  # it is of steps that are no part of this run any more
    ]:
        numbered = NumberedCheckpoints(config, start)
        for at, score in scores.items():
            checkpoint(config, at, score or 0.0)
            numbered.saved(at, score=score, finished=False)
        assert torch.load(best)["counters"]["agent_steps"] == kept
    best.unlink()  # it is the newest checkpoint as well
    best.write_text("damaged")
    NumberedCheckpoints(config, 15).saved(20, score=0.5, finished=False)
    assert torch.load(best)["counters"]["agent_steps"] == 15, "the newest checkpoint, in its place"


def checkpoint(config: RunConfig, steps: int, score: float) -> None:
    """Make this the newest checkpoint: after these agent steps, with this mean return of 100 episodes."""
    meters = Meters(config.env.tasks)
    for _ in range(100):
        meters.episodes.add(score, 1)
    parts: dict[str, Any] = {name: {} for name in ("model", "learning", "config", "env", "policy", "rng", "rollouts")}
    own = {"format": CHECKPOINT_FORMAT, "counters": {"agent_steps": steps}, "statistics": meters.state()}
    path = config.folder / run_files.CHECKPOINT
    path.unlink()  # its other names stay
    torch.save(parts | own, path)


def test_a_run_that_goes_back_keeps_nothing_of_later_steps(config: RunConfig, caplog: pytest.LogCaptureFixture) -> None:
    numbered = NumberedCheckpoints(config, 0)
    save(numbered, 30, 55, 60)
    for at in (30, 55, 60):
        evaluations.append(config.folder, [row(at)])
    videos = [config.folder / "videos" / f"{name}.mp4" for name in ("30-sampled", "60-sampled", "60-mine")]
    videos[0].parent.mkdir()
    for video in videos:
        video.touch()
    NumberedCheckpoints(config, 60)
    assert not caplog.records
    NumberedCheckpoints(config, 54)
    assert len(caplog.records) == 1
    assert evaluations.scores(evaluations.read(config.folder), [""], "") == {30: 30}
    assert (steps(config, run_files.CHECKPOINTS), steps(config, run_files.TO_EVALUATE)) == ([30], [])
    assert (config.folder / f"{run_files.numbered(60)}.old").exists()
    assert [video.exists() for video in videos] == [True, False, True]


def test_a_table_that_stays_locked_is_worth_another_start(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it drops of later steps is not written at the same time, so that it needs the lock of the evaluator."""
    monkeypatch.setattr(evaluations, "TRIES", 2)
    (config.folder / run_files.TO_EVALUATE).mkdir()
    with evaluations.table_lock(config.folder), pytest.raises(DiskError, match="csv"):
        NumberedCheckpoints(config, 30)
