"""What a learner does for other ranks, in a process that is alone."""

from typing import Any

import pytest

from tests.build.learners import Clock, Opener, feed
from zerobeast.services.learner import sharing
from zerobeast.services.learner.checkpoint import Checkpoints


@pytest.mark.parametrize(("theirs", "drifts"), [([0], 0), ([0, 1], 1), ([None], 0)], ids=["alike", "some", "not begun"])
def test_ranks_whose_weights_have_drifted_are_counted_and_take_those_of_the_first(
    open_run: Opener, monkeypatch: pytest.MonkeyPatch, theirs: list[int | None], drifts: int
) -> None:
    run, followed = open_run(), list[Any]()
    run.welcomed()
    monkeypatch.setattr(run.trainer, "follow", followed.append)

    def texts(mine: bytes, _name: str) -> list[bytes]:
        own = sharing.unpacked(mine)
        apart = [None if None in (each, own["weights"]) else own["weights"] + each for each in theirs]
        return [mine, *(sharing.packed({"weights": each}) for each in apart)]

    monkeypatch.setattr(sharing.ranks, "texts", texts)
    sharing.share(run.learner.training, whole=False)
    sharing.share(run.learner.training, whole=True)
    assert (run.page["drifts"], len(followed)) == (drifts, drifts)


def test_a_checkpoint_that_takes_longer_than_the_time_between_two_leaves_time_to_learn(
    open_run: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    run = open_run({"clock": clock})
    feed(run.learner, run.actor(), range(1, 2))
    save, saved = Checkpoints.save, list[Any]()

    def slowly(checkpoints: Checkpoints, state: dict[str, Any]) -> None:
        clock.skipped += 5000.0
        save(checkpoints, state)
        saved.append(state)

    monkeypatch.setattr(Checkpoints, "save", slowly)
    clock.skipped += 1001.0
    for _ in range(3):
        run.learner.tick(clock())
    assert len(saved) == 1
