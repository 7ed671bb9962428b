"""Rollouts in flight: acknowledgements, new connections, and the episodes that travel with them.

That none is lost or used twice, whatever happens to messages and learners, is in test_group.py.
"""

import numpy as np
import pytest

from zerobeast.common.wire.messages import Header, Kind
from zerobeast.common.wire.stream import Reply, Stream
from zerobeast.services.actor.outbox import MAX_EPISODES, MAX_WAITING_EPISODES, Outbox
from zerobeast.services.actor.waits import TIMEOUTS

ME = 7
ROWS = [np.zeros(2, np.dtype([("x", "<f4")])) for _ in range(3)]


def welcome(seq: int = 0, **more: float) -> Header:
    return Header(Kind.WELCOME, ME, 0, 1, seq, ({"window": 3, **more},))


def ack(seq: int, epoch: int = 1) -> Header:
    return Header(Kind.ACK, ME, 0, epoch, seq, (seq, 3))


def under_way(count: int) -> Outbox:
    """An outbox with `count` rollouts sent and not acknowledged."""
    outbox = Outbox(Stream(ME, 0, {}, "learner"))
    assert not outbox.room, "nothing may be pushed before WELCOME"
    assert outbox.due(0.0)[0].kind is Kind.HELLO
    assert outbox.accept(welcome(), 0.0)[0] is Reply.WELCOME
    for rows in ROWS[:count]:
        outbox.push(rows, [], 0.0)
    assert send_all(outbox) == list(range(1, count + 1))
    assert outbox.room == (count < 3)
    return outbox


def send_all(outbox: Outbox, now: float = 0.0) -> list[int]:
    seqs = []
    while (work := outbox.due(now)) and work[0].kind is Kind.ROLLOUT:
        seqs.append(work[0].seq)
        outbox.mark_sent()
    return seqs


def test_an_ack_covers_everything_up_to_its_number_if_it_is_of_this_learner() -> None:
    outbox = under_way(3)
    assert outbox.accept(ack(2, epoch=5), 0.0) == (Reply.STALE, [])
    _, free = outbox.accept(ack(2), 1.0)
    assert [id(rows) for rows in free] == [id(rows) for rows in ROWS[:2]]
    assert (outbox.unacked, outbox.room) == (1, True)


def test_a_new_connection_to_the_same_learner_is_asked_at_once_what_has_come() -> None:
    here = Header(Kind.HERE, ME, 0, 1)
    outbox = under_way(0)
    assert outbox.accept(here, 0.5)[0] is Reply.STALE
    assert outbox.due(0.5) is None, "nothing is under way"
    outbox = under_way(3)
    outbox.accept(ack(1), 0.5)
    assert outbox.accept(here, 1.0)[0] is Reply.STALE
    hello = outbox.due(1.0)[0]
    assert (hello.kind, hello.body[0]["first"]) == (Kind.HELLO, 2), "those before it are acknowledged and gone"
    outbox.accept(welcome(seq=1, received=2, progress=0.25), 1.1)
    assert outbox.progress == 0.25, "that of exploration and of schedules of environments"
    assert send_all(outbox, 1.1) == [3]
    assert outbox.unacked == 2


def test_more_episodes_than_a_header_holds_travel_with_the_next_rollouts_up_to_a_bound() -> None:
    outbox = under_way(0)
    episodes = [[float(number), 1] for number in range(2 * MAX_EPISODES + 5)]
    for rows, ended in zip(ROWS, (episodes, [], []), strict=True):
        outbox.push(rows, ended, 0.0)
    travelled = []
    while (work := outbox.due(0.0)) and work[0].kind is Kind.ROLLOUT:
        travelled.append(work[0].body[1])
        outbox.mark_sent()
    assert [len(entries) for entries in travelled] == [MAX_EPISODES, MAX_EPISODES, 5]
    assert [entry for entries in travelled for entry in entries] == episodes
    assert outbox.episodes_dropped == 0
    outbox = under_way(0)
    outbox.push(ROWS[0], [[float(number), 1] for number in range(MAX_WAITING_EPISODES + 7)], 0.0)
    assert outbox.episodes_dropped == 7
    assert outbox.due(0.0)[0].body[1][0] == [7.0, 1], "the oldest are given up"


@pytest.mark.parametrize("count", [0, 1])
def test_silence_causes_a_new_hello_whether_or_not_rollouts_are_in_flight(count: int) -> None:
    outbox = under_way(count)
    if count:
        outbox.accept(ack(0), TIMEOUTS.no_progress - 1)  # which is no progress
    assert outbox.due(TIMEOUTS.no_progress) is None
    assert outbox.due(TIMEOUTS.no_progress + 0.1)[0].kind is Kind.HELLO
    outbox.accept(welcome(), TIMEOUTS.no_progress + 0.2)
    assert send_all(outbox, TIMEOUTS.no_progress + 0.2) == [1][:count]
    assert outbox.due(2 * TIMEOUTS.no_progress) is None
