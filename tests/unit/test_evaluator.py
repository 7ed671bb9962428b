"""Which policies an evaluator keeps, and which of its results; nothing is played here."""

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import poll, wait_until
from tests.unit.test_policy import REACH, saved
from zerobeast.clients.policy import Policy
from zerobeast.common.config.load import load as settings
from zerobeast.common.config.process import Instance
from zerobeast.common.errors import ConfigError, PeerLost
from zerobeast.common.files import evaluations, run_files
from zerobeast.common.files.evaluation_queue import EvaluationQueue
from zerobeast.common.settings import RunConfig
from zerobeast.services.evaluator import service
from zerobeast.services.evaluator.results import Evaluation
from zerobeast.services.evaluator.service import Evaluator

Evaluate = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path) -> RunConfig:
    folder = saved(tmp_path, "impala", REACH)
    return settings(["--config", str(folder / run_files.CONFIG)], {})


@pytest.fixture
def evaluate(run: RunConfig, monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """Evaluates the policies of these steps with these results, `then` being called when each has been played."""

    def found(then: Callable[[Path], None], scores: dict[int, float]) -> None:
        def play(_self: Evaluator, policy: Policy, _elapsed_s: float) -> list[dict[str, Any]]:
            then(run.folder / run_files.TO_EVALUATE / f"{policy.agent_steps}.pt")
            return [Evaluation(run.env.id, [scores[policy.agent_steps]], [1], True, 0, 1, policy.agent_steps).row()]

        monkeypatch.setattr(Evaluator, "_play", play)
        state = torch.load(run.folder / run_files.CHECKPOINT)
        with closing(Evaluator(run, Instance())) as evaluator:
            evaluator.open()
            for steps in scores:
                state["counters"]["agent_steps"] = int(state["model"]["agent_steps"].fill_(steps))
                torch.save(state, run.folder / run_files.TO_EVALUATE / f"{steps}.pt")
            wait_until(lambda: poll(evaluator, 0.01) or not run_files.kept(run.folder, run_files.TO_EVALUATE))

    return found


def best(run: RunConfig) -> int:
    return int(torch.load(run.folder / run_files.BEST_CHECKPOINT)["counters"]["agent_steps"])


def test_a_policy_is_the_best_if_it_beats_the_one_whose_checkpoint_there_is(run: RunConfig, evaluate: Evaluate) -> None:
    evaluate(lambda _path: None, {10: 3.0, 20: 2.0})
    assert best(run) == 10
    (run.folder / run_files.BEST_CHECKPOINT).unlink()
    evaluate(lambda _path: None, {30: 1.0, 40: 1.234567891, 50: 1.1})
    assert best(run) == 40
    evaluate(lambda _path: None, {40: 1.234567891})
    assert best(run) == 40
    (run.folder / run_files.BEST_CHECKPOINT).write_text("damaged")
    evaluate(lambda _path: None, {60: 0.5})
    assert best(run) == 60
    assert run_files.BEST_CHECKPOINT.with_name("checkpoint.pt.old") in {
        path.relative_to(run.folder) for path in (run.folder / run_files.BEST_CHECKPOINT).parent.iterdir()
    }


def test_the_best_policy_is_that_of_the_kind_of_actions_that_evaluations_take(
    run: RunConfig, evaluate: Evaluate
) -> None:
    others = Evaluation(run.env.id, [9.0], [1], False, 0, 1, 5).row()  # before the run was continued with other actions
    evaluations.append(run.folder, [others])
    evaluate(lambda _path: None, {5: 1.0, 10: 3.0, 20: 2.0})
    assert best(run) == 10
    rows = evaluations.read(run.folder)
    assert [(row["agent_steps"], row["actions"]) for row in rows][:2] == [(5, "sampled"), (5, "greedy")]


def test_what_is_found_about_a_policy_that_is_gone_does_not_count(run: RunConfig, evaluate: Evaluate) -> None:
    evaluate(Path.unlink, {10: 3.0})
    assert evaluations.read(run.folder) == []


def test_a_table_that_cannot_be_read_costs_a_policy_and_not_the_run(
    run: RunConfig, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage(_path: Path) -> None:
        (run.folder / run_files.EVALUATIONS).write_text("agent_steps\nx\n")

    monkeypatch.setattr(service, "DISK_S", 0.0)
    evaluate(damage, {10: 3.0})
    assert not run_files.kept(run.folder, run_files.TO_EVALUATE)


def test_a_policy_whose_row_cannot_be_written_waits_until_it_can(
    run: RunConfig, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, append = iter(range(5)), evaluations.append

    def full(*args: Any) -> None:
        if next(failures, None) is not None:
            raise ConfigError("No space left on device")
        append(*args)

    monkeypatch.setattr(evaluations, "append", full)
    monkeypatch.setattr(service, "DISK_S", 0.0)
    evaluate(lambda _path: None, {10: 3.0})
    assert evaluations.scores(evaluations.read(run.folder), [run.env.id], "greedy") == {10: 3.0}


def entry(run: RunConfig, steps: int) -> Path:
    """A policy that waits."""
    path = run.folder / run_files.TO_EVALUATE / f"{steps}.pt"
    path.parent.mkdir(exist_ok=True)
    return path


def test_what_can_be_neither_evaluated_nor_deleted_holds_nobody_up(run: RunConfig, evaluate: Evaluate) -> None:
    entry(run, 5).mkdir(parents=True)
    evaluate(lambda _path: None, {10: 3.0})
    assert evaluations.scores(evaluations.read(run.folder), [run.env.id], "greedy") == {10: 3.0}
    assert entry(run, 5).with_name("5.pt.old").is_dir()


def test_a_policy_that_is_played_again_and_again_is_no_progress(
    run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, failures = list[tuple[int, int]](), iter(range(3))

    def play(self: Evaluator, policy: Policy, _elapsed_s: float) -> list[dict[str, Any]]:
        self._before, self._steps = self._before + self._steps, 0
        self._watch([], 7)
        return [Evaluation(run.env.id, [1.0], [7], True, 0, 1, policy.agent_steps).row()]

    def full(*_args: Any) -> None:
        if next(failures, None) is not None:
            raise ConfigError("No space left on device")

    monkeypatch.setattr(Evaluator, "_play", play)
    monkeypatch.setattr(EvaluationQueue, "report_progress", lambda _self, progress, _now: shown.append(progress))
    monkeypatch.setattr(evaluations, "append", full)
    monkeypatch.setattr(service, "DISK_S", 0.0)
    with closing(Evaluator(run, Instance())) as evaluator:
        evaluator.open()
        shutil.copyfile(run.folder / run_files.CHECKPOINT, entry(run, 0))
        wait_until(lambda: evaluator.turn() or evaluator.report()["evaluations"])
        assert evaluator.report()["agent_steps"] == 4 * 7
    assert set(shown) <= {(0, 0), (0, 7), (1, 7)}
    assert max(shown) == (1, 7)


def test_an_env_server_elsewhere_that_fails_in_a_later_level_costs_tries(
    run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(self: Evaluator, _policy: Policy, _elapsed_s: float) -> list[dict[str, Any]]:
        self._watch([], 7)
        self._before, self._steps = self._before + self._steps, 0  # the next level begins
        raise PeerLost("env-server: no answer for 660 s")

    monkeypatch.setattr(Evaluator, "_play", play)
    monkeypatch.setattr(service, "LOOK_PERIOD_S", 0.0)
    with closing(Evaluator(run, Instance(env_server="ipc:///nowhere"))) as evaluator:
        evaluator.open()
        shutil.copyfile(run.folder / run_files.CHECKPOINT, entry(run, 0))
        wait_until(lambda: evaluator.turn() or not evaluator.report()["evaluations_waiting"])
        assert evaluator.report()["evaluations_failed"] == service.MAX_TRIES


def test_a_queue_that_cannot_be_changed_is_played_once_and_the_evaluator_goes_on(
    run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = list[int]()

    def play(_self: Evaluator, policy: Policy, _elapsed_s: float) -> list[dict[str, Any]]:
        played.append(policy.agent_steps)
        return [Evaluation(run.env.id, [1.0], [1], True, 0, 1, policy.agent_steps).row()]

    def refused(*_args: Any, **_options: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Evaluator, "_play", play)
    monkeypatch.setattr(service, "LOOK_PERIOD_S", 0.0)
    with closing(Evaluator(run, Instance())) as evaluator:
        evaluator.open()
        shutil.copyfile(run.folder / run_files.CHECKPOINT, entry(run, 0))
        for method in ("unlink", "replace"):
            monkeypatch.setattr(Path, method, refused)
        monkeypatch.setattr(evaluations, "append", lambda *_args: None)
        wait_until(lambda: poll(evaluator, 0.01) or evaluator.report()["evaluations"])
        for _ in range(20):
            poll(evaluator, 0.01)
        assert len(played) == 1
        assert evaluator.report()["evaluations_waiting"] == 1
