"""The learner and its actors: what it takes, acknowledges and refuses, and that the run stays open to others."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.build.learners import POLICY, B, Opener, T, rollout_rows
from tests.helpers import wait_until
from zerobeast.common.errors import ConfigError, StoreError
from zerobeast.common.wire import ArraySpace, EnvSpec
from zerobeast.common.wire.messages import Header, Kind
from zerobeast.common.wire.session import YIELDS_S
from zerobeast.services.learner.coordination import SoloCoordinator
from zerobeast.services.learner.update import Trainer

FIVE = {"env": EnvSpec("Test-v0", ArraySpace.box((5,)), ArraySpace.discrete(2), frame_skip=4).to_wire()}


def test_a_message_is_acknowledged_when_its_last_row_was_used_and_not_before(endpoint: str, open_run: Opener) -> None:
    run = open_run(endpoint=endpoint, window=4)
    actor = run.welcomed(policy=None)
    window = 4 + 1  # actor.collect_ahead
    assert actor.stream.terms == {"window": window, "policy": POLICY.to_wire(), "unroll_length": T, "received": 0}
    actor.push(1, rollout_rows(3, 1))
    run.drive([actor], lambda: run.queue.usable == 3)
    actor.push(2, rollout_rows(3, 2))
    run.drive([actor], lambda: any(actor.acked))
    assert max(actor.acked) == 1, "message 2 has two rows left"
    assert run.trainer.counters.updates == 1
    run.greet_again(actor)
    assert (actor.stream.seq, actor.stream.terms["received"]) == (1, 2), "need not be sent again"
    actor.push(3, rollout_rows(2, 3))
    run.drive([actor], lambda: 3 in actor.acked)
    assert (actor.replies[-1].seq, actor.replies[-1].body) == (3, (3, window, None))


def test_a_hello_behind_rollouts_that_find_no_room_is_answered(endpoint: str, open_run: Opener) -> None:
    run = open_run(endpoint=endpoint)
    actors = run.crowd(5)
    for number, actor in enumerate(actors):
        actor.push(1, rollout_rows(4, number))
        actor.stream.greet_again(run.learner.clock())

    def all_answered() -> bool:
        run.intake.receive(run.learner.clock())
        for actor in actors:
            actor.turn(run.learner.clock())
        welcomes = [[reply.body[0] for reply in actor.replies if reply.kind is Kind.WELCOME] for actor in actors]
        return all(terms[-1]["received"] == 1 for terms in welcomes)  # an earlier one may answer the first HELLO again

    wait_until(all_answered)
    assert run.queue.usable == 5 * 4
    for actor in actors:
        actor.push(1, rollout_rows(4))  # sent again, though it need not be
    run.drive(actors, lambda: all(1 in actor.acked for actor in actors))
    assert run.page["agent_steps"] == 5 * 4 * 5


def test_sessions_that_only_send_hello_do_not_narrow_the_window_of_those_that_deliver(open_run: Opener) -> None:
    """A batch has 4 rows and the actor sends 1 at a time: with a window of 1 nothing would ever be learned."""
    run = open_run(window=1)
    others, actor, sent = run.crowd(20), run.welcomed(num_envs=1), 0

    def learned() -> bool:
        nonlocal sent
        newest, done = actor.replies[-1], max(actor.acked, default=0)
        while sent - done < (newest.body[1] if newest.kind is Kind.ACK else newest.body[0]["window"]):
            sent += 1
            actor.push(sent, rollout_rows(1, sent))
        return done >= 5 * B

    run.drive([actor, *others], learned)


@pytest.mark.parametrize("leaves", [True, False], ids=["and leaves", "and stays"])
def test_an_actor_that_sends_hello_first_and_delivers_nothing_decides_nothing(
    open_run: Opener, monkeypatch: pytest.MonkeyPatch, *, leaves: bool
) -> None:
    run = open_run()
    first, actor = run.welcomed(**FIVE), run.actor()
    if leaves:
        first.close()
        run.drive([], lambda: run.page["peers"] == 0)
    else:
        first.push(1, rollout_rows(2))  # of another size than its own description
        run.drive([first], lambda: run.page["refused_by_reason"])
        run.drive([actor], lambda: actor.stream.busy)
        clock = run.learner.clock
        monkeypatch.setattr(run.learner, "clock", lambda: clock() + YIELDS_S + 1)
    with pytest.raises(ConfigError):
        run.welcomed(unroll_length=6)  # could begin no run either
    run.greet(actor)
    assert not run.learner.training.vote(SoloCoordinator()).env, "ranks would have to play the same"
    actor.push(1, rollout_rows(B))
    run.drive([actor], lambda: actor.acked)
    with pytest.raises(ConfigError):
        run.welcomed(**FIVE)
    assert run.page["agent_steps"] == B * T
    assert run.learner.training.vote(SoloCoordinator()).env


def test_a_description_without_rollouts_is_not_saved(open_run: Opener) -> None:
    run = open_run()
    run.welcomed(**FIVE)
    run.learner.drain()
    assert not list(run.learner.config.folder.glob("*.pt"))


def test_a_disk_that_cannot_hold_the_run_ends_the_learner_and_refuses_no_actor(open_run: Opener) -> None:
    def full(*_: object) -> Trainer:
        raise StoreError("the disk is full")

    run = open_run({"make_trainer": full})
    actor = run.actor()
    with pytest.raises(StoreError):
        run.greet(actor)
    assert Kind.ERROR not in [reply.kind for reply in actor.replies]


def test_terms_that_need_more_memory_than_there_is_are_refused(open_run: Opener) -> None:
    class TooLarge(Trainer):
        def storage(self, _capacity: int) -> NDArray[np.void]:
            raise RuntimeError("can't allocate memory")

    kinds = iter([TooLarge, Trainer])
    run = open_run({"make_trainer": lambda *args: next(kinds)(*args)})
    with pytest.raises(ConfigError, match="RuntimeError"):
        run.welcomed()
    run.welcomed()


def test_malformed_rollouts_are_counted_and_the_run_goes_on(open_run: Opener) -> None:
    run = open_run()
    actor = run.welcomed()
    poisoned, impossible = rollout_rows(2), rollout_rows(2)
    poisoned["reward"][0, 1] = np.nan
    impossible["last_action"][0, 1] = 2
    actor.push(1, poisoned)
    actor.push(2, impossible)
    for seq, rows in enumerate((3, 1, 0, 10**9), start=3):
        actor.push(seq, rollout_rows(2), n=rows)
    actor.push(7, rollout_rows(2), [[1.0, 5]] * 1001)
    actor.port.send(Header(Kind.STEP, actor.port.sender, 0, actor.stream.epoch, 8))
    actor.push(8, rollout_rows(4), [[float("nan"), 3], [7.0, 5]])
    run.drive([actor], lambda: 8 in actor.acked)
    assert run.page["refused_by_reason"] == {"values": 2, "payload": 4, "episodes": 2, "kind": 1}
    assert run.page["refused"] == 9
    assert (run.page["agent_steps"], run.page["rollouts_by_fate"]["used"]) == (B * T, 4)
    assert (run.page["episodes"], run.page["mean_return_100"]) == (1, 7.0), "an episode costs no rows"
    assert actor.acked[-1] == 8, "a sender of bad rollouts is not left waiting"
