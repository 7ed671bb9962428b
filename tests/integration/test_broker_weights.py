"""The broker's inbox for weights, with plain numbers for time."""

from collections.abc import Iterator

import numpy as np
import pytest

from common.errors import PeerLost
from common.messages import PROTOCOL_VERSION, Header, Kind
from common.nets.weights import flatten, layout_id
from common.transport import Context
from services.broker.weights import SILENCE_S, WeightsInbox
from tests.broker_fakes import EchoNet, FakeLearner
from tests.helpers import wait_until

pytestmark = pytest.mark.integration

NET = EchoNet()


@pytest.fixture
def inbox(context: Context, endpoint: str) -> Iterator[WeightsInbox]:
    found = WeightsInbox(context, endpoint, layout_id(NET), flatten(NET).nbytes)
    yield found
    found.close()


@pytest.fixture
def learner(context: Context, endpoint: str) -> Iterator[FakeLearner]:
    found = FakeLearner(context, endpoint)
    yield found
    found.port.close()


def receive(inbox: WeightsInbox, learner: FakeLearner, now: float = 0.0) -> np.ndarray:
    def probe() -> list[np.ndarray]:
        learner.port.welcome()
        weights = inbox.newest(now)
        return [] if weights is None else [weights]

    return wait_until(probe)[0]


def test_a_late_subscriber_gets_the_newest_version(inbox: WeightsInbox, learner: FakeLearner) -> None:
    learner.publish(1)
    learner.publish(2)
    assert inbox.connect(0.0)
    assert receive(inbox, learner).tobytes() == flatten(EchoNet(2.0)).tobytes()
    assert inbox.version == 2


def test_versions_that_wait_are_skipped_up_to_the_newest(inbox: WeightsInbox, learner: FakeLearner) -> None:
    learner.publish(1)
    inbox.connect(0.0)
    receive(inbox, learner)
    learner.publish(2)
    learner.publish(3)
    seen = []
    wait_until(lambda: seen.append(receive(inbox, learner)) or inbox.version == 3)
    assert seen[-1].view(np.float32)[0] == 3.0
    assert inbox.newest(0.0) is None


def test_the_subscription_is_made_anew_after_a_silence(inbox: WeightsInbox, learner: FakeLearner) -> None:
    assert inbox.connect(100.0)
    before = inbox.pollable
    assert not inbox.connect(100.0 + SILENCE_S - 0.1)
    assert inbox.pollable == before
    assert inbox.connect(100.0 + SILENCE_S)
    assert inbox.pollable != before
    learner.publish(1)
    receive(inbox, learner, now=115.0)
    assert not inbox.connect(115.0 + SILENCE_S - 0.1), "a version that arrives ends the silence"
    assert inbox.connect(115.0 + SILENCE_S)
    learner.publish(2)
    receive(inbox, learner)
    assert inbox.version == 2


def test_a_name_that_does_not_resolve_is_tried_again(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch, learner: FakeLearner
) -> None:
    inbox = WeightsInbox(context, endpoint, layout_id(NET), flatten(NET).nbytes)

    def unknown(_self: object) -> None:
        raise PeerLost("cannot resolve 'learner'")

    with monkeypatch.context() as patch:
        patch.setattr("common.endpoints.Endpoint.resolved", unknown)
        assert not inbox.connect(0.0)
        assert inbox.pollable == []
        assert inbox.newest(0.0) is None
    assert not inbox.connect(1.0)
    assert inbox.connect(SILENCE_S)
    learner.publish(1)
    receive(inbox, learner)
    assert inbox.version == 1
    with monkeypatch.context() as patch:
        patch.setattr("common.endpoints.Endpoint.resolved", unknown)
        assert not inbox.connect(3 * SILENCE_S), "what works is kept"
    learner.publish(2)
    receive(inbox, learner)
    assert inbox.version == 2
    inbox.close()


def test_what_is_no_version_of_the_weights_is_counted(
    inbox: WeightsInbox, learner: FakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(reason: str) -> None:
        wait_until(lambda: (inbox.newest(0.0), inbox.refused[reason])[1])
        assert inbox.complaint

    learner.publish(1)
    inbox.connect(0.0)
    receive(inbox, learner)
    learner.port.publish(Header(Kind.ACK, 0, epoch=1, body=(1, 1)), np.zeros(8, np.uint8))
    counted("kind")
    with monkeypatch.context() as patch:
        patch.setattr("common.messages.PROTOCOL_VERSION", PROTOCOL_VERSION + 1)
        learner.publish(2)
    counted("version")
    flat = flatten(EchoNet())
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
