"""Rollouts in flight: the window, acknowledgements, and restarts of the learner."""

import numpy as np
import pytest

from zerobeast.common.wire.messages import Header, Kind, Reason
from zerobeast.common.wire.stream import Reply, Stream
from zerobeast.services.actor.outbox import MAX_EPISODES, MAX_WAITING_EPISODES, Outbox
from zerobeast.services.actor.waits import TIMEOUTS

ME = 7
ROWS = [np.zeros(2, np.dtype([("x", "<f4")])) for _ in range(9)]


def welcome(epoch: int = 1, seq: int = 0, window: int = 2) -> Header:
    return Header(Kind.WELCOME, ME, 0, epoch, seq, ({"window": window},))


def ack(seq: int, epoch: int = 1, window: int = 2) -> Header:
    return Header(Kind.ACK, ME, 0, epoch, seq, (seq, window))


def opened(window: int = 2) -> Outbox:
    outbox = Outbox(Stream(ME, 0, {}, "learner"))
    assert outbox.due(0.0)[0].kind is Kind.HELLO
    assert outbox.accept(welcome(window=window), 0.0)[0] is Reply.WELCOME
    return outbox


def under_way(count: int, window: int = 3) -> Outbox:
    """An outbox with `count` rollouts sent and not acknowledged."""
    outbox = opened(window)
    for rows in ROWS[:count]:
        outbox.push(rows, [], 0.0)
    assert send_all(outbox) == list(range(1, count + 1))
    return outbox


def send_all(outbox: Outbox, now: float = 0.0) -> list[int]:
    seqs = []
    while (work := outbox.due(now)) and work[0].kind is Kind.ROLLOUT:
        seqs.append(work[0].seq)
        outbox.mark_sent()
    return seqs


def test_the_window_bounds_what_is_under_way() -> None:
    assert not Outbox(Stream(ME, 0, {}, "learner")).room, "nothing may be pushed before WELCOME"
    outbox = opened(window=2)
    for rows in ROWS[:2]:
        outbox.push(rows, [], 0.0)
    assert not outbox.room
    assert send_all(outbox) == [1, 2]
    assert send_all(outbox) == [], "each is sent once"
    assert outbox.accept(ack(1), 1.0) == (Reply.ANSWER, [ROWS[0]])
    assert outbox.room


def test_an_ack_covers_everything_up_to_its_number_if_it_is_of_this_learner() -> None:
    outbox = under_way(3)
    assert outbox.accept(ack(2, epoch=5), 0.0) == (Reply.STALE, [])
    _, free = outbox.accept(ack(2, window=3), 1.0)
    assert [id(rows) for rows in free] == [id(rows) for rows in ROWS[:2]]
    assert outbox.unacked == 1


def test_a_restarted_learner_gets_everything_unacknowledged_again_under_the_same_numbers() -> None:
    outbox = under_way(2)
    refusal = Header(Kind.ERROR, ME, 0, 9, 2, (str(Reason.UNKNOWN_SESSION), "who are you?"))
    assert outbox.accept(refusal, 1.0)[0] is Reply.LOST
    assert outbox.due(1.0)[0].kind is Kind.HELLO
    outbox.accept(welcome(epoch=9), 1.1)
    assert send_all(outbox) == [1, 2]
    assert outbox.sent == 4


def test_rollouts_up_to_the_number_in_a_welcome_are_not_sent_again() -> None:
    outbox = under_way(3)
    outbox.stream.greet_again(1.0)
    _, free = outbox.accept(welcome(seq=2, window=3), 1.0)
    assert len(free) == 2
    assert send_all(outbox) == [3]


def test_a_new_connection_to_the_same_learner_is_asked_at_once_what_has_come() -> None:
    here = Header(Kind.HERE, ME, 0, 1)
    outbox = opened()
    assert outbox.accept(here, 0.5)[0] is Reply.STALE
    assert outbox.due(0.5) is None, "nothing is under way"
    outbox = under_way(3)
    assert outbox.accept(here, 1.0)[0] is Reply.STALE
    assert outbox.due(1.0)[0].kind is Kind.HELLO
    outbox.accept(Header(Kind.WELCOME, ME, 0, 1, 1, ({"window": 3, "received": 2},)), 1.1)
    assert send_all(outbox, 1.1) == [3]


def test_hello_states_the_first_unacknowledged_number() -> None:
    outbox = under_way(3)
    for seq, first in ((2, 3), (3, 4)):
        outbox.accept(ack(seq, window=3), 0.5)
        outbox.stream.greet_again(1.0)
        assert outbox.due(1.0)[0].body[0]["first"] == first, "those before it are acknowledged and gone"
        outbox.accept(welcome(seq=seq, window=3), 1.1)


def test_more_episodes_than_a_header_holds_travel_with_the_next_rollouts() -> None:
    outbox = opened(window=3)
    episodes = [[float(number), 1] for number in range(2 * MAX_EPISODES + 5)]
    for rows, ended in zip(ROWS[:3], (episodes, [], []), strict=True):
        outbox.push(rows, ended, 0.0)
    travelled = []
    while (work := outbox.due(0.0)) and work[0].kind is Kind.ROLLOUT:
        travelled.append(work[0].body[1])
        outbox.mark_sent()
    assert [len(entries) for entries in travelled] == [MAX_EPISODES, MAX_EPISODES, 5]
    assert [entry for entries in travelled for entry in entries] == episodes
    assert outbox.episodes_dropped == 0


def test_the_number_of_waiting_episodes_is_bounded() -> None:
    outbox = opened(window=1)
    outbox.push(ROWS[0], [[float(number), 1] for number in range(MAX_WAITING_EPISODES + 7)], 0.0)
    assert outbox.episodes_dropped == 7
    assert outbox.due(0.0)[0].body[1][0] == [7.0, 1], "the oldest are given up"


@pytest.mark.parametrize("count", [0, 1])
def test_silence_causes_a_new_hello_whether_or_not_rollouts_are_in_flight(count: int) -> None:
    outbox = under_way(count)
    if count:
        outbox.accept(ack(0, window=3), TIMEOUTS.no_progress - 1)  # which changes the window, and is no progress
    assert outbox.due(TIMEOUTS.no_progress) is None
    assert outbox.due(TIMEOUTS.no_progress + 0.1)[0].kind is Kind.HELLO
    outbox.accept(welcome(), TIMEOUTS.no_progress + 0.2)
    assert send_all(outbox, TIMEOUTS.no_progress + 0.2) == [1][:count]
    assert outbox.due(2 * TIMEOUTS.no_progress) is None
