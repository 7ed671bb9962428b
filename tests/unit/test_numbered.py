"""Checkpoints under other names: at which steps, which stay, and that the last policy is evaluated once."""

from pathlib import Path

import pytest

from zerobeast.common.files import evaluations, run_files
from zerobeast.common.settings import RunConfig
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


def test_each_milestone_is_met_once_and_the_end_is_always_evaluated(config: RunConfig) -> None:
    numbered, saved = NumberedCheckpoints(config, 0), []
    for at in range(7, 106, 7):
        at = min(at, 100)
        if numbered.due(at):
            numbered.saved(at, best=True, finished=False)
            saved.append(at)
    assert saved == [35, 56, 63, 91], "30, 50, 60 and 90; the evaluation at 100 is that of the end"
    numbered.saved(100, best=True, finished=True)
    assert steps(config, run_files.CHECKPOINTS) == [63, 91]
    assert steps(config, run_files.TO_EVALUATE) == [56, 100]
    assert not (config.folder / run_files.BEST_CHECKPOINT).exists(), "the evaluator judges"


def test_a_run_that_is_started_again_after_its_end_is_not_evaluated_again(config: RunConfig) -> None:
    evaluations.append(config.folder, [{"agent_steps": 100, "env": "x", "mean_return": 1.0}])
    NumberedCheckpoints(config, 100).saved(100, best=False, finished=True)
    assert steps(config, run_files.TO_EVALUATE) == []


def test_a_checkpoint_that_cannot_be_written_is_not_tried_at_every_step(config: RunConfig) -> None:
    numbered = NumberedCheckpoints(config, 0)
    assert numbered.due(31)
    numbered.missed(31)
    assert not numbered.due(32)
    assert numbered.due(50)


def test_without_an_evaluator_the_queue_is_bounded_but_for_the_last_policy(config: RunConfig) -> None:
    config = config.model_copy(update={"total_steps": 10**6, "evaluate": type(config.evaluate)(every_steps=1)})
    numbered = NumberedCheckpoints(config, 0)
    for at in range(1, MAX_WAITING + 10):
        numbered.saved(at, best=False, finished=False)
    numbered.saved(10**6, best=False, finished=True)
    assert steps(config, run_files.TO_EVALUATE) == [*range(1, MAX_WAITING + 1), 10**6]


def test_without_evaluations_the_best_training_return_is_kept(config: RunConfig) -> None:
    config = config.model_copy(update={"evaluate": type(config.evaluate)()})
    NumberedCheckpoints(config, 0).saved(5, best=True, finished=False)
    assert (config.folder / run_files.BEST_CHECKPOINT).read_text() == "newest"
