"""Streams of several environments at one learner."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.build.learners import (
    ENV,
    FakeActor,
    Opener,
    feed,
    greet,
    learn_batches,
    open_learner,
    rollout_rows,
    run_config,
)
from zerobeast.services.learner.update import AddedRows, Trainer

TASKS = "One-v0,Two-v0"
POPART = {"popart": True, "reward_clipping": "none"}


def terms(task: str) -> dict[str, Any]:
    return {"env": replace(ENV, env_id=task).to_wire()}


class Noting(Trainer):
    """Records (task, reward of the first step) of every row that is learned from."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: list[tuple[int, float]] = []

    def add(self, rows: NDArray[np.void], tasks: NDArray[np.int64], origins: NDArray[np.int64]) -> AddedRows:
        self.seen.extend(zip(tasks.tolist(), rows["reward"][:, 1].tolist(), strict=True))
        return super().add(rows, tasks, origins)


def paid(n: int, reward: float) -> NDArray[np.void]:
    rows = rollout_rows(n, seams=False)
    rows["reward"][:] = reward
    return rows


def test_every_row_is_learned_from_under_the_environment_of_its_stream(open_run: Opener) -> None:
    run = open_run({"make_trainer": Noting}, env=TASKS, impala=POPART)
    two, one = run.welcomed(**terms("Two-v0"), num_envs=3), run.welcomed(**terms("One-v0"), num_envs=1)
    for seq in (1, 2, 3, 4):
        two.push(seq, paid(3, 200.0), [[200.0, 5]])
        run.drive([one, two], lambda seq=seq: run.queue.usable % 4 == 3)
        one.push(seq, paid(1, 1.0), [[1.0, 5]])
        run.drive([one, two], lambda seq=seq: seq in one.acked and seq in two.acked)
    assert run.trainer.seen == [(1, 200.0), (1, 200.0), (1, 200.0), (0, 1.0)] * 4
    assert run.page["mean_return_100_by_task"] == {"One-v0": 1.0, "Two-v0": 200.0}
    assert run.page["mean_return_100"] == pytest.approx(100.5)
    scale = run.trainer.net.value.scale
    assert scale[1] > 1.5 * scale[0], "each has a unit of its own"


def test_units_and_returns_go_on_after_a_restart(tmp_path: Path, actor_of: Callable[..., FakeActor]) -> None:
    config = run_config(tmp_path, env=TASKS, impala=POPART, endpoint=f"ipc://{tmp_path}/l")
    actor = actor_of(config, **terms("Two-v0"))
    learn_batches(config, actor, range(1, 4))
    with open_learner(config, make_trainer=Noting) as learner:
        assert learner.report()["mean_return_100_by_task"] == {"One-v0": None, "Two-v0": 2.0}
        trainer = learner.training.trainer
        mean = trainer.net.value.mean
        assert (mean != 0).tolist() == [False, True]
        actor.stream.greet_again(learner.clock())
        greet(learner, actor)
        feed(learner, actor, range(4, 5))
        assert [task for task, _ in trainer.seen] == [1, 1, 1, 1], "its HELLO says again which it is"
        learner.drain()
