"""A learner whose algorithm has a store resumes from the store, not from the checkpoint, after a kill."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.build.learners import B, FakeActor, T, drive, feed, greet, opened, rollout_rows, run_config
from zerobeast.rl.learning.gradient_descent import GradientDescent
from zerobeast.services.learner.update import Trainer
from zerobeast.tools.chaos.witness.store import OriginFile, StoringLearning


class Storing(Trainer):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        descent, loss = GradientDescent(self.config, self.config.algorithm, self.net.parameters()), self.algorithm.loss  # type: ignore[attr-defined]
        self.learning = StoringLearning(self.net, descent, loss, OriginFile(self.config.store / "rows"))


@pytest.mark.parametrize("saves", [False, True], ids=["no checkpoint", "a checkpoint"])
def test_rollouts_that_a_killed_learner_has_acknowledged_are_restored(
    endpoint: str, tmp_path: Path, actor_of: Callable[..., FakeActor], *, saves: bool
) -> None:
    config = run_config(tmp_path, endpoint=endpoint)
    actor = actor_of(config, first=1)
    with opened(config, make_trainer=Storing) as learner:
        feed(learner, actor, range(1, 2))
        if saves:
            learner._write(learner.clock(), checkpoint=True)
        feed(learner, actor, range(2, 4))
    actor.replies.clear()
    actor.stream.greet_again(0.0)
    actor.stream.hello_terms["first"] = 3  # the last acknowledgement did not arrive
    with opened(config, make_trainer=Storing) as learner:
        greet(learner, actor)
        assert actor.stream.terms["received"] == 3
        page = learner.report()
        assert page["rollouts_by_fate"] == {"used": 3 * B, "skipped": 0, "refused": 0, "stale": 0, "undone": 0}
        assert page["agent_steps"] == 3 * B * T
        for seq in (3, 4):
            actor.push(seq, rollout_rows(B, seq))
        drive(learner, [actor], lambda: 4 in actor.acked)
        assert learner.report()["rollouts_by_fate"]["used"] == 4 * B
    stored = OriginFile(config.store / "rows").found
    assert [(row.seq, row.row) for row in stored] == [(seq, row) for seq in range(1, 5) for row in range(B)]
