"""Which policies wait for an evaluator, which of them and of its results are kept, and how long an end waits for it."""

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
from zerobeast.common.errors import ConfigError, DiskError, PeerLost
from zerobeast.common.files import evaluations, run_files
from zerobeast.common.files.evaluation_queue import STEPS, STILL_S, EvaluationQueue
from zerobeast.common.settings import RunConfig
from zerobeast.playing.evaluation import Evaluation
from zerobeast.services.evaluator import service
from zerobeast.services.evaluator.service import Evaluator
from zerobeast.services.learner.checkpoint import CHECKPOINT_FORMAT, Checkpoints
from zerobeast.services.learner.checkpoint_links import MAX_WAITING, CheckpointLinks
from zerobeast.services.learner.meters import Meters
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
            waiting = partial(run_files.list_checkpoints, self.folder, run_files.TO_EVALUATE)
            wait_until(lambda: poll(evaluator, 0.01) or evaluator.tick(0.0) or not waiting())
            return evaluator.report()

    def scores(self) -> dict[int, float]:
        return evaluations.scores(evaluations.read_evaluations(self.folder), [self.config.env.id], "greedy")

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
    evaluations.append_evaluations(run.folder, [others])
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
    rows = evaluations.read_evaluations(run.folder)
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
    failures, append = [ConfigError("No space left on device")] * 3, evaluations.append_evaluations
    shown: set[tuple[int, int]] = set()

    def game(_steps: int, watch: Watch) -> float:
        watch([], 7)
        return 1.0

    def tried(*given: Any) -> None:
        if failures:
            raise failures.pop()
        append(*given)

    run.game = game
    monkeypatch.setattr(EvaluationQueue, "report_progress", lambda _self, progress, _now: shown.add(progress))
    monkeypatch.setattr(evaluations, "append_evaluations", tried)
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
    assert evaluations.read_evaluations(tmp_path) == []
    for row in (FIRST, LATER):
        evaluations.append_evaluations(tmp_path, [row])
    first, later = evaluations.read_evaluations(tmp_path)
    assert first == {**FIRST, "info/is_success": None, "lengths": []}
    assert later == LATER


def test_an_evaluation_that_is_repeated_takes_the_place_of_the_earlier_one(tmp_path: Path) -> None:
    other = {**FIRST, "env": "B", "level": "rare", "mean_return": 7.5}
    evaluations.append_evaluations(tmp_path, [FIRST])  # then the process was killed
    evaluations.append_evaluations(tmp_path, [{**FIRST, "mean_return": 2.5, "returns": [0.5] * 20_000}, other])
    rows = [*evaluations.read_evaluations(tmp_path), LATER]
    assert evaluations.scores(rows, ["CartPole-v1", "B"], "") == {100: 5.0, 200: 1e-7}
    assert evaluations.scores(rows, [""], "") == evaluations.scores(rows, ["CartPole-v1"], "") == {100: 2.5, 200: 1e-7}
    assert evaluations.scores(rows, [evaluations.first_level(", rare,CartPole-v1")], "") == {100: 7.5}


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / run_files.CHECKPOINT).write_text("newest")
    learner = {"checkpoint_every_steps": 30, "keep_checkpoints": 2}
    tree = {"name": "x", "root": str(tmp_path), "total_steps": 100, "learner": learner, "evaluate": {"times": 2}}
    return RunConfig.model_validate(tree)


def steps(config: RunConfig, kind: str) -> list[int]:
    return [number for number, _ in run_files.list_checkpoints(config.folder, kind)]


def save(numbered: CheckpointLinks, *at: int, finished: bool = False) -> None:
    for step in at:
        numbered.link_saved(step, score=float(step), finished=finished)


def row(at: int, **more: Any) -> dict[str, Any]:
    """An evaluation."""
    return {"agent_steps": at, "env": "x", "mean_return": at, **more}


def test_each_milestone_is_met_once_and_the_end_is_always_evaluated(config: RunConfig) -> None:
    numbered, saved = CheckpointLinks(config, 0), list[int]()
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
    evaluations.append_evaluations(config.folder, [row(100, actions="greedy")])
    how = config.evaluate.model_copy(update={"actions": actions})
    save(CheckpointLinks(config.model_copy(update={"evaluate": how}), 100), 100, finished=True)
    assert steps(config, run_files.TO_EVALUATE) == again


def test_without_an_evaluator_the_queue_is_bounded_but_for_the_last_policy(config: RunConfig) -> None:
    config = config.model_copy(update={"total_steps": 10**6, "evaluate": type(config.evaluate)(every_steps=1)})
    numbered = CheckpointLinks(config, 0)
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
        numbered = CheckpointLinks(config, start)
        for at, score in scores.items():
            checkpoint(config, at, score or 0.0)
            numbered.link_saved(at, score=score, finished=False)
        assert torch.load(best)["counters"]["agent_steps"] == kept
    best.unlink()  # it is the newest checkpoint as well
    best.write_text("damaged")
    CheckpointLinks(config, 15).link_saved(20, score=0.5, finished=False)
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
    numbered = CheckpointLinks(config, 0)
    save(numbered, 30, 55, 60)
    for at in (30, 55, 60):
        evaluations.append_evaluations(config.folder, [row(at)])
    videos = [config.folder / "videos" / f"{name}.mp4" for name in ("30-sampled", "60-sampled", "60-mine")]
    videos[0].parent.mkdir()
    for video in videos:
        video.touch()
    CheckpointLinks(config, 60)
    assert not caplog.records
    CheckpointLinks(config, 54)
    assert len(caplog.records) == 1
    assert evaluations.scores(evaluations.read_evaluations(config.folder), [""], "") == {30: 30}
    assert (steps(config, run_files.CHECKPOINTS), steps(config, run_files.TO_EVALUATE)) == ([30], [])
    assert (config.folder / f"{run_files.checkpoint_path(60)}.old").exists()
    assert [video.exists() for video in videos] == [True, False, True]


def test_a_table_that_stays_locked_is_worth_another_start(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it drops of later steps is not written at the same time, so that it needs the lock of the evaluator."""
    monkeypatch.setattr(evaluations, "TRIES", 2)
    (config.folder / run_files.TO_EVALUATE).mkdir()
    with evaluations.table_lock(config.folder), pytest.raises(DiskError, match="csv"):
        CheckpointLinks(config, 30)
