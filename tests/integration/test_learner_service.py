"""The learner as a whole over real sockets: it learns, publishes, shares with ranks, and ends by itself."""

import json
from contextlib import closing
from typing import Any

import pytest
import torch

from tests.build.learners import Clock, Opener, feed, next_weights, rollout_rows
from zerobeast.common.errors import BeastError
from zerobeast.common.files import metrics, run_files
from zerobeast.common.service.base import LINGER_S
from zerobeast.common.transport import Context, WeightsSubscriber, checksum
from zerobeast.common.wire.messages import Kind
from zerobeast.rl.nets.weights import layout_id, load_flat
from zerobeast.rl.ops import optim, ranks
from zerobeast.services.learner.checkpoint import Checkpoints, load_checkpoint, pack_state, unpack_state


def test_a_run_ends_exactly_at_its_total(endpoint: str, open_run: Opener, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    run = open_run(total_steps=130, endpoint=endpoint)
    actor = run.welcomed()
    for seq in range(1, 9):
        actor.push(seq, rollout_rows(4, seq), [[float(seq), 10]])
    run.drive([actor], lambda: run.page["agent_steps"] >= 130)  # before it ends by itself
    run.learner.drain()
    assert caplog.messages[-1] == run.learner.outcome == "all 130 agent steps are done"
    page = run.page
    run.drive([actor], lambda: actor.replies[-1].kind is Kind.BYE)
    run.learner.close()
    names = ("agent_steps", "env_frames", "updates", "episodes", "mean_return_100", "policy_lag_max")
    assert [page[name] for name in names] == [130, 520, 7, 7, pytest.approx(4.0), 6]
    assert actor.acked == [1, 2, 3, 4, 5, 6, 7]
    row = metrics.read_last_row(run.learner.config.folder)
    assert [row[name] for name in names[:3]] == [130, 520, 7]
    assert load_checkpoint(run.learner.config.folder / "checkpoint.pt")["counters"]["agent_steps"] == 130
    json.dumps(page, allow_nan=False)


def test_a_run_ends_with_a_sentence_once_too_many_episodes_are_lost(endpoint: str, open_run: Opener) -> None:
    run = open_run(total_steps=130, endpoint=endpoint, max_lost_episodes=0.002)
    actor = run.welcomed()
    for seq in range(1, 4):
        actor.push(seq, rollout_rows(4, seq), [[1.0, 10], ["RuntimeError: it broke (walk.py:7)", 0]])
    run.drive([actor], lambda: run.learner.stopping)
    with pytest.raises(BeastError, match=r"^3 .*RuntimeError: it broke"):
        run.learner.drain()
    run.learner.close()
    folder = run.learner.config.folder
    assert metrics.read_last_row(folder)["episodes_lost"] == 3
    assert load_checkpoint(folder / "checkpoint.pt")["counters"]["agent_steps"] == 60
    assert not (folder / "reached").exists()


def test_a_learner_that_stays_has_saved_the_run_and_reports_finished_until_it_is_stopped(open_run: Opener) -> None:
    run = open_run(total_steps=20, when_done="stay")
    files = [run.learner.config.folder / name for name in ("checkpoint.pt", "metrics.csv")]
    actor = run.welcomed()
    for seq in (1, 2):
        actor.push(seq, rollout_rows(4, seq))
    run.drive([actor], files[0].exists)
    kept = [file.read_bytes() for file in files]
    run.learner.tick(run.learner.clock() + 5000)
    late = run.welcomed()
    assert (run.learner.stopping, run.learner.idle(), run.page["finished"]) == (False, True, True)
    run.learner.drain()
    assert [file.read_bytes() for file in files] == kept
    run.drive([actor, late], lambda: late.replies[-1].kind is Kind.BYE)
    assert run.page["agent_steps"] == 20


def test_a_learner_that_waits_for_evaluations_ends_once_none_is_left(open_run: Opener) -> None:
    clock = Clock()
    run = open_run({"clock": clock}, total_steps=20, when_done="evaluated", evaluate={"times": 1})
    waiting = run.learner.config.folder / run_files.TO_EVALUATE / "20.pt"
    actor = run.welcomed()
    for seq in (1, 2):
        actor.push(seq, rollout_rows(4, seq))
    run.drive([actor], waiting.exists)
    run.drive([actor], run.learner.idle)
    assert not run.learner.stopping
    waiting.unlink()
    run.drive([actor], run.learner.idle)
    assert not run.learner.stopping, "compose has to see that it was healthy"
    clock.skipped += LINGER_S
    run.drive([actor], lambda: run.learner.stopping)


def test_every_kth_version_is_published_and_a_late_broker_gets_the_newest(context: Context, open_run: Opener) -> None:
    run = open_run(publish_every=3)
    actor = run.welcomed()
    with closing(WeightsSubscriber(context, actor.port.endpoint)) as subscriber:
        assert next_weights(run.learner, subscriber)[0].body[0] == 0, "before any update"
    for seq in range(1, 6):
        actor.push(seq, rollout_rows(4, seq))
    run.drive([actor], lambda: len(actor.acked) == 5)
    with closing(WeightsSubscriber(context, actor.port.endpoint)) as subscriber:
        assert next_weights(run.learner, subscriber)[0].body[0] == 3
        run.learner.drain()
        header, buffer = next_weights(run.learner, subscriber)
    described = (layout_id(run.trainer.net), buffer.nbytes, checksum(buffer))
    assert header.body[:4] == (5, *described), "the last weights go out whatever k is"
    net = run.trainer.algorithm.network()
    load_flat(net, buffer)
    for name, value in run.trainer.net.state_dict().items():
        assert torch.equal(net.state_dict()[name], value)


@pytest.mark.parametrize(("rule", "used", "stale"), [("always", 16, 12), ("every 100", 28, 0)])
def test_lag_counts_published_versions_while_each_one_acts(open_run: Opener, rule: str, used: int, stale: int) -> None:
    run = open_run(publish_every=2, max_policy_lag=1, sync=rule)
    actor = run.welcomed()
    for seq in range(1, 8):  # version 0 acted in all; after three updates version 2 is published, after four version 4
        actor.push(seq, rollout_rows(4, seq), acting=(5, 2**62, 0)[seq % 3])
        run.drive([actor], lambda seq=seq: seq in actor.acked)
    assert run.page["acting"] == 2, "brokers"
    assert run.page["rollouts_by_fate"] == {"used": used, "stale": stale, "skipped": 0, "refused": 0, "undone": 0}


def test_each_optimizer_step_counts_as_progress_of_a_long_update(open_run: Opener) -> None:
    learner, weight = open_run().learner, torch.nn.Parameter(torch.zeros(1))
    optimizer, before, turned = optim.Adam([weight]), learner.alive_at, learner.loop_at
    optimizer.step()
    assert learner.alive_at > before
    assert learner.loop_at == turned, "nothing was read from peers, so that none of them has been silent"
    learner.close()
    last = learner.alive_at
    optimizer.step()
    assert learner.alive_at == last


@pytest.mark.parametrize(("theirs", "drifts"), [([0], 0), ([0, 1], 1), ([None], 0)], ids=["alike", "some", "not begun"])
def test_ranks_whose_weights_have_drifted_are_counted_and_take_those_of_the_first(
    open_run: Opener, monkeypatch: pytest.MonkeyPatch, theirs: list[int | None], drifts: int
) -> None:
    run, followed = open_run(), list[Any]()
    run.welcomed()
    monkeypatch.setattr(run.trainer, "follow", followed.append)

    def texts(mine: bytes, _name: str) -> list[bytes]:
        own = unpack_state(mine)
        apart = [None if None in (each, own["weights"]) else own["weights"] + each for each in theirs]
        return [mine, *(pack_state({"weights": each}) for each in apart)]

    monkeypatch.setattr(ranks, "gather_bytes", texts)
    run.learner.share_with_ranks(whole=False)
    run.learner.share_with_ranks(whole=True)
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
