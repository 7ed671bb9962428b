"""The learner and its actors: what it takes and in which order, when it acknowledges it, and whom it forgets."""

import pytest

from tests.build.learners import POLICY, FakeActor, Opener, T, rollout_rows
from tests.helpers import wait_until
from zerobeast.common.transport import ClientPort, Context
from zerobeast.common.wire.messages import Kind, Plane, Reason
from zerobeast.common.wire.stream import Stream


def test_a_message_is_acknowledged_when_its_last_row_was_used_and_not_before(endpoint: str, open_run: Opener) -> None:
    run = open_run(endpoint=endpoint, window=4)
    actor = run.welcomed()
    actor.push(1, rollout_rows(3, 1))
    run.drive([actor], lambda: run.queue.usable == 3)
    actor.push(2, rollout_rows(3, 2))
    run.drive([actor], lambda: actor.acked)
    assert actor.acked == [1], "message 2 has two rows left"
    assert run.trainer.counters.updates == 1
    actor.push(3, rollout_rows(2, 3))
    run.drive([actor], lambda: len(actor.acked) == 3)
    assert actor.acked == [1, 2, 3]
    ack = actor.replies[-1]
    assert (ack.seq, ack.body) == (3, (3, run.learner.config.learner.window, None))


def test_a_repeated_message_is_trained_once_and_answered_again(endpoint: str, open_run: Opener) -> None:
    run = open_run(endpoint=endpoint, window=4)
    actor = run.welcomed()
    for _ in range(5):
        actor.push(1, rollout_rows(2, 1))
    actor.push(2, rollout_rows(2, 2))
    run.drive([actor], lambda: 2 in actor.acked)
    actor.push(1, rollout_rows(2, 1))
    actor.push(2, rollout_rows(2, 2))
    run.drive([actor], lambda: len(actor.acked) == 4)
    assert run.page["updates"] == 1
    assert run.page["queue_rows"] == 0
    assert set(actor.acked[2:]) == {2}, "an answer says what is used up by now"


def test_welcome_has_the_window_the_policy_and_what_is_used_up(open_run: Opener) -> None:
    run = open_run(window=3)
    actor = run.welcomed(policy=None)
    assert actor.stream.terms == {"window": 3, "policy": POLICY.to_wire(), "unroll_length": T, "received": 0}
    assert actor.stream.seq == 0
    actor.push(7, rollout_rows(4))
    actor.push(8, rollout_rows(1))
    run.drive([actor], lambda: actor.acked)
    run.greet_again(actor)
    assert actor.stream.seq == 7
    assert actor.stream.terms["received"] == 8, "need not be sent again"


def test_a_hello_behind_rollouts_that_find_no_room_is_answered(endpoint: str, open_run: Opener) -> None:
    run = open_run(endpoint=endpoint)
    actors = run.crowd(5)
    for number, actor in enumerate(actors):
        actor.push(1, rollout_rows(4, number))
        actor.stream.greet_again(run.learner.clock())

    def turn() -> bool:
        run.intake.receive(run.learner.clock())
        for actor in actors:
            actor.turn(run.learner.clock())
        return all(received(actor) == 1 for actor in actors)

    def received(actor: FakeActor) -> int:
        """`received` in the newest WELCOME; an earlier one may be a second answer to the first HELLO."""
        welcomes = [reply for reply in actor.replies if reply.kind is Kind.WELCOME]
        return int(welcomes[-1].body[0]["received"])

    wait_until(turn)
    assert run.queue.usable == 5 * 4
    for actor in actors:
        actor.push(1, rollout_rows(4))  # sent again, though it need not be
    run.drive(actors, lambda: all(1 in actor.acked for actor in actors))
    assert run.page["agent_steps"] == 5 * 4 * 5


def test_no_more_is_received_than_credit_was_given_for(open_run: Opener) -> None:
    run = open_run()
    actors = run.crowd(3)
    for actor in actors:
        for seq in range(1, 7):
            actor.push(seq, rollout_rows(4, seq))

    def received() -> int:
        run.intake.receive(run.learner.clock())
        return len(run.queue)

    wait_until(lambda: received() == 4)
    assert max(received() for _ in range(200)) == 4, "one of each actor, and one that shows that this is all"
    run.drive(actors, lambda: run.learner.stopping)
    assert run.page["agent_steps"] == 160


def test_an_actor_that_leaves_is_dropped_when_its_place_is_needed(open_run: Opener) -> None:
    run = open_run()
    actor = run.welcomed()
    assert run.page["peers"] == 1
    actor.close()
    run.drive([], lambda: run.page["peers"] == 0)
    assert len(run.intake._sessions) == 1, "its connection may only be broken"
    run.intake._sessions.limit = 1
    next_one = run.welcomed()
    assert run.intake._sessions.senders == {next_one.port.sender}
    late = run.actor()
    run.drive([late], lambda: late.stream.busy)
    assert run.intake._sessions.senders == {next_one.port.sender}, "who is here is never forgotten"


def test_rollouts_are_not_trained_twice_when_a_connection_breaks(endpoint: str, open_run: Opener) -> None:
    run = open_run(endpoint=endpoint, window=4)
    actor = run.welcomed()
    actor.push(1, rollout_rows(2, 1))
    run.drive([actor], lambda: run.queue.usable == 2)
    actor.port.reopen()
    run.greet_again(actor)
    actor.push(1, rollout_rows(2, 1))
    actor.push(2, rollout_rows(1, 2))
    run.drive([actor], lambda: run.queue.usable == 3)
    assert run.page["agent_steps"] == 0


def test_a_rollout_after_a_missing_one_is_refused(endpoint: str, open_run: Opener) -> None:
    run = open_run(endpoint=endpoint, window=4)
    actor = run.welcomed()
    actor.push(3, rollout_rows(2, 3))
    actor.push(5, rollout_rows(2, 5))
    run.drive([actor], lambda: actor.replies[-1].kind is Kind.ERROR)
    assert actor.replies[-1].seq == 5
    assert actor.replies[-1].body[0] == Reason.UNKNOWN_SESSION
    assert run.page["queue_rows"] == 2
    run.greet_again(actor)
    for seq in (3, 4, 5):
        actor.push(seq, rollout_rows(2, seq))
    run.drive([actor], lambda: 4 in actor.acked and run.queue.usable == 2)
    assert run.page["updates"] == 1
    assert run.page["refused_by_reason"] == {"session": 1}


def test_rollouts_that_a_dead_actor_left_in_the_socket_do_not_bring_it_back(context: Context, open_run: Opener) -> None:
    run = open_run(window=4)
    actor = run.welcomed()
    actor.push(1, rollout_rows(1, 1))
    wait_until(lambda: run.intake.port.pollable[0].poll(1))
    port = ClientPort(context, Plane.ROLLOUTS, actor.port.endpoint, actor.port.sender)
    actor.close()
    port.close()
    wait_until(lambda: run.intake.port.pollable[1].poll(1))
    run.drive([], lambda: run.queue.usable == 1)
    run.drive([], lambda: run.intake.peers == 0)
    assert list(run.intake._left) == [actor.port.sender]


def test_streams_of_one_actor_are_counted_apart(open_run: Opener) -> None:
    run = open_run()
    actor = run.welcomed()
    first = actor.stream
    actor.stream = Stream(actor.port.sender, 1, dict(first.hello_terms), "learner")
    run.greet(actor)
    actor.push(1, rollout_rows(2, 1))
    actor.stream = first
    actor.push(1, rollout_rows(2, 2))
    run.drive([actor], lambda: len(actor.acked) == 2)
    assert {reply.slot for reply in actor.replies if reply.kind is Kind.ACK} == {0, 1}
    assert run.page["peers"] == 1


def test_a_queued_rollout_keeps_the_broker_that_chose_its_actions(
    open_run: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, taken = open_run(), []
    actor = run.welcomed()
    put = run.queue.put
    monkeypatch.setattr(run.queue, "put", lambda message, rows: (taken.append(message.acting), put(message, rows)))
    actor.push(1, rollout_rows(2, 1), acting=77)
    run.drive([actor], lambda: taken)
    assert taken == [77]
