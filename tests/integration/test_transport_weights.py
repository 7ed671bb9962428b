"""Versions of the weights: each subscriber gets the newest, none waits for a slow one, and brokers find what is due."""

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import count

import numpy as np
import pytest
import zmq

from tests.build.brokers import EchoNet, FakeLearner
from tests.helpers import free_port, wait_until
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import PeerLost
from zerobeast.common.settings.sync_rule import Rule
from zerobeast.common.transport import CHUNK_BYTES, Context, WeightsPublisher, WeightsSubscriber, chunks, weights
from zerobeast.common.transport.sockets import WEIGHTS
from zerobeast.common.transport.weights import MIN_HELD, WEIGHTS_TOPIC, connections
from zerobeast.common.wire import messages
from zerobeast.common.wire.messages import Header, Kind
from zerobeast.rl.acting import weights_inbox
from zerobeast.rl.acting.sync import Sync
from zerobeast.rl.acting.weights_inbox import LOOKUP_PERIOD_S, SILENCE_S, WeightsInbox
from zerobeast.rl.nets.weights import flatten, layout_id

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


def test_a_version_arrives_in_chunks_of_1_mebibyte(
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


NET = EchoNet()


@pytest.fixture
def inbox(context: Context, endpoint: str) -> Iterator[WeightsInbox]:
    found = WeightsInbox(context, endpoint, layout_id(NET), flatten(NET).nbytes)
    yield found
    found.close()


@contextmanager
def serving(context: Context, endpoint: str) -> Iterator[FakeLearner]:
    found = FakeLearner(context, endpoint)
    yield found
    found.port.close()


@pytest.fixture
def learner(context: Context, endpoint: str) -> Iterator[FakeLearner]:
    with serving(context, endpoint) as found:
        yield found


def receive(inbox: WeightsInbox, learner: FakeLearner, now: float = 0.0) -> np.ndarray:
    def probe() -> list[np.ndarray]:
        learner.port.welcome()
        weights = inbox.newest(now)
        return [] if weights is None else [weights]

    return wait_until(probe)[0]


def test_versions_are_skipped_up_to_the_newest(inbox: WeightsInbox, learner: FakeLearner) -> None:
    learner.publish(1)
    learner.publish(2)
    assert inbox.connect(0.0)
    assert receive(inbox, learner).tobytes() == flatten(EchoNet(2.0)).tobytes()
    assert inbox.version == 2
    learner.publish(3)
    learner.publish(4)
    seen = []
    wait_until(lambda: seen.append(receive(inbox, learner)) or inbox.version == 4)
    assert seen[-1].view(np.float32)[0] == 4.0
    assert inbox.newest(0.0) is None


def test_a_rule_pulls_the_versions_that_are_due_and_subscribes_to_no_others(context: Context, endpoint: str) -> None:
    sync = Sync(Rule.parse("every 2"), acting=7)
    inbox = WeightsInbox(context, endpoint, layout_id(NET), flatten(NET).nbytes, sync=sync)
    with closing(inbox), serving(context, endpoint) as learner:

        def turned(version: int) -> bool:
            learner.port.welcome()
            inbox.connect(1.0)
            inbox.newest(1.0)
            return inbox.version == version

        learner.publish(0)
        wait_until(lambda: turned(0))
        for newest, held in ((1, 0), (2, 2), (3, 2), (4, 4)):
            learner.publish(newest)
            learner.port.tell(Header(Kind.NEWS, 0, epoch=learner.epoch, seq=newest, body=(newest, [])))
            wait_until(
                lambda held=held, newest=newest: turned(held) and sync.page()["versions_behind"] == newest - held
            )
            turned(held)
            assert len(inbox.pollable) == 1, "the news alone"
    assert (sync.page()["syncs"], inbox.refused) == (3, Counter())


def test_the_subscription_is_renewed_after_a_silence_that_grows(inbox: WeightsInbox, learner: FakeLearner) -> None:
    assert inbox.connect(100.0)
    before, now = inbox.pollable, 100.0 + SILENCE_S
    assert not inbox.connect(now - 0.1)
    assert inbox.pollable == before
    assert inbox.connect(now)
    assert inbox.pollable != before
    assert not inbox.connect(now + 2 * SILENCE_S - 0.1), "on a slow link a version may take that long"
    learner.publish(1)
    receive(inbox, learner, now + 2 * SILENCE_S - 0.1)
    now += 2 * SILENCE_S - 0.1
    assert not inbox.connect(now + 3 * SILENCE_S), "and so may the next"
    assert inbox.connect(now + 4 * SILENCE_S + LOOKUP_PERIOD_S)
    now += 4 * SILENCE_S + LOOKUP_PERIOD_S
    learner.publish(2)
    receive(inbox, learner, now)
    assert inbox.version == 2
    assert inbox.connect(now + SILENCE_S), "a link that is fast again is soon missed"


def test_a_learner_that_moves_is_found_at_its_new_address_and_kept_while_its_name_is_gone(context: Context) -> None:
    port, now, hosts = free_port(), 0.0, list[str]()

    def addresses(place: Endpoint) -> list[Endpoint]:
        if not hosts:
            raise PeerLost("cannot resolve 'learner'")
        return [Endpoint(host, place.port) for host in hosts]

    def connected() -> bool:
        nonlocal now
        now += LOOKUP_PERIOD_S
        return inbox.connect(now)

    inbox = WeightsInbox(context, f"tcp://learner:{port}", layout_id(NET), flatten(NET).nbytes, addresses)
    with closing(inbox):
        assert not any(connected() for _ in range(3))
        for version, host in enumerate(("127.0.0.2", "127.0.0.3"), start=1):
            with serving(context, f"tcp://{host}:{port}") as learner:
                hosts[:] = [host]
                wait_until(connected)
                learner.publish(version)
                receive(inbox, learner, now)
                kept = inbox.pollable
                hosts.clear()
                now += SILENCE_S
                assert not any(connected() for _ in range(3))
                learner.publish(version + 10)
                receive(inbox, learner, now)
                assert inbox.pollable == kept, "what works is kept"


def test_messages_that_are_no_version_of_the_weights_are_counted(
    inbox: WeightsInbox, learner: FakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(reason: str) -> None:
        wait_until(lambda: (inbox.newest(0.0), inbox.refused[reason])[1])
        assert inbox.complaint

    learner.publish(1)
    inbox.connect(0.0)
    receive(inbox, learner)
    learner.port.publish(Header(Kind.OBS, 0, epoch=1, body=([],)), np.zeros(8, np.uint8))
    counted("kind")
    flat = flatten(EchoNet())
    with monkeypatch.context() as patch:
        patch.setattr(messages, "PROTOCOL_VERSION", 1)
        body: tuple[int, ...] = (2, inbox.layout_id, flat.nbytes, 0, 1)
        learner.port.publish(Header(Kind.WEIGHTS, 0, epoch=learner.epoch, body=body), flat)
    counted("version")
    body = (3, inbox.layout_id, flat.nbytes, 0, 2)
    for wrong in (flat[:-1], flat[: flat.nbytes // 2], np.zeros(flat.nbytes + 1, np.uint8)):
        learner.port.publish(Header(Kind.WEIGHTS, 0, epoch=learner.epoch, body=body), wrong)
        counted("payload")
        inbox.close()
        inbox.connect(float("inf"))
    assert inbox.version == 1
    learner.publish(4)
    receive(inbox, learner)
    assert (inbox.version, inbox.complaint) == (4, "")


def test_a_flood_of_versions_does_not_block_the_loop_of_the_broker(
    inbox: WeightsInbox, learner: FakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call ends even if the publisher is faster than this reader."""
    monkeypatch.setattr(weights_inbox, "MAX_VERSIONS", 1)
    learner.publish(1)
    inbox.connect(0.0)
    receive(inbox, learner)
    for version in (2, 3):  # as many as a socket holds
        learner.publish(version, n_bytes=8)

    def all_read() -> bool:
        before = inbox.refused["layout"]
        assert inbox.newest(0.0) is None
        assert inbox.refused["layout"] <= before + 1
        return inbox.refused["layout"] == 2

    wait_until(all_read)
    assert inbox.complaint
