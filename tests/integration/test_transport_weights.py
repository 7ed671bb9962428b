"""Versions of the weights: each subscriber gets the newest, whenever it subscribes, and none waits for a slow one."""

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count

import numpy as np
import pytest
import zmq

from tests.helpers import wait_until
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.transport import CHUNK_BYTES, Context, WeightsPublisher, WeightsSubscriber, chunks, weights
from zerobeast.common.transport.sockets import WEIGHTS
from zerobeast.common.transport.weights import MIN_HELD, WEIGHTS_TOPIC, connections
from zerobeast.common.wire.messages import Header, Kind

SMALL = np.arange(1000, dtype=np.uint8)


@pytest.fixture
def publisher(context: Context, endpoint: str) -> Iterator[WeightsPublisher]:
    with closing(WeightsPublisher(context, endpoint)) as found:
        yield found


def version(number: int, snapshot: np.ndarray = SMALL) -> Header:
    return Header(Kind.WEIGHTS, 0, 0, 5, 0, (number, 1, snapshot.nbytes, 2, len(chunks(snapshot))))


def arrivals(publisher: WeightsPublisher, subscriber: WeightsSubscriber, last: int) -> list[int]:
    """Versions received up to `last`, while the publisher serves new subscribers as a learner's loop does."""
    found: list[int] = []

    def done() -> bool:
        publisher.welcome()
        while message := subscriber.receive():
            found.append(message.header.body[0])
        return last in found

    wait_until(done)
    return found


def test_a_version_arrives_in_chunks_of_one_mebibyte(
    context: Context, endpoint: str, publisher: WeightsPublisher
) -> None:
    snapshot = np.random.default_rng(1).integers(0, 256, 5 * CHUNK_BYTES // 2, np.uint8)
    publisher.publish(version(1, snapshot), snapshot)
    with closing(WeightsSubscriber(context, endpoint)) as subscriber:
        message = wait_until(lambda: publisher.welcome() or subscriber.receive())
        assert message.header == version(1, snapshot)
        parts = chunks(buffer := np.zeros_like(snapshot))
        assert [part.nbytes for part in parts] == [CHUNK_BYTES, CHUNK_BYTES, CHUNK_BYTES // 2]
        assert all(message.into(part, last=part is parts[-1]) for part in parts)
        np.testing.assert_array_equal(buffer, snapshot)


def test_a_late_subscriber_gets_the_newest_exactly_once_and_the_others_nothing_extra(
    context: Context, endpoint: str, publisher: WeightsPublisher
) -> None:
    with closing(WeightsSubscriber(context, endpoint)) as early:
        wait_until(lambda: publisher.pollable[0].poll(1))
        for number in (1, 2):
            publisher.publish(version(number), SMALL)
            arrivals(publisher, early, number)
        with closing(WeightsSubscriber(context, endpoint)) as late:
            assert arrivals(publisher, late, 2) == [2]
            publisher.publish(version(3), SMALL)
            assert arrivals(publisher, late, 3) == [3]
        assert arrivals(publisher, early, 3) == [3]


def test_subscribers_that_never_read_hold_a_bounded_number_of_versions(
    context: Context, endpoint: str, publisher: WeightsPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "MAX_HELD_BYTES", 0)
    monkeypatch.setattr(weights, "CUT_PERIOD_S", 0.0)
    size, number, snapshots = 8 * CHUNK_BYTES + 100, 0, list[weakref.ref[np.ndarray]]()
    with closing(WeightsSubscriber(context, endpoint)) as reads, ExitStack() as stack:
        for _ in range(2 * MIN_HELD):
            slow = stack.enter_context(context.socket(zmq.SUB))
            slow.rcvhwm = 1
            slow.subscribe(WEIGHTS_TOPIC)
            slow.connect(Endpoint.parse(endpoint).socket(WEIGHTS))
            for _ in range(2):  # so that each holds versions of its own
                number += 1
                publisher.publish(version(number, snapshot := np.zeros(size, np.uint8)), snapshot)
                snapshots.append(weakref.ref(snapshot))
                assert arrivals(publisher, reads, number)[-1] == number
            assert sum(snapshot() is not None for snapshot in snapshots) <= MIN_HELD + 2
        assert number > 2 * MIN_HELD


def test_more_subscribers_than_there_is_room_for_are_served_once_others_have_left(
    context: Context, endpoint: str, publisher: WeightsPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "MAX_SUBSCRIBERS", 2)
    monkeypatch.setattr(weights, "COUNT_PERIOD_S", 0.0)
    publisher.publish(version(1), SMALL)
    with closing(WeightsSubscriber(context, endpoint)) as first:
        assert arrivals(publisher, first, 1) == [1]
        with closing(WeightsSubscriber(context, endpoint)) as second:
            assert arrivals(publisher, second, 1) == [1]
            with closing(WeightsSubscriber(context, endpoint)) as third:
                wait_until(lambda: publisher.pollable[0].poll(1))
                publisher.publish(version(2), SMALL)
                assert [arrivals(publisher, each, 2) for each in (first, second)] == [[2], [2]]
                assert third.receive() is None
        with closing(WeightsSubscriber(context, endpoint)) as fourth:
            wait_until(lambda: len(list(connections(publisher.pollable[0]))) == 2)
            assert arrivals(publisher, fourth, 2) == [2]


def test_a_subscriber_that_does_not_read_delays_no_other_and_finds_the_newest_later(
    context: Context, endpoint: str, publisher: WeightsPublisher
) -> None:
    large, numbers, backlog = np.zeros(4 * CHUNK_BYTES, np.uint8), count(), list[int]()

    def publish() -> int:
        publisher.publish(version(number := next(numbers), large), large)
        return number

    def caught_up() -> bool:
        publish()
        while message := asleep.receive():
            backlog.append(message.header.body[0])
        return bool(backlog) and backlog[-1] > 30

    with (
        closing(WeightsSubscriber(context, endpoint)) as asleep,
        closing(WeightsSubscriber(context, endpoint)) as awake,
    ):
        publish()
        arrivals(publisher, awake, 0)
        arrivals(publisher, asleep, 0)
        for _ in range(30):
            number = publish()
            assert arrivals(publisher, awake, number) == [number]
        wait_until(caught_up)
        assert backlog == sorted(backlog)
        assert len(backlog) < next(numbers) - 1, "what it could not take was dropped, not kept"
