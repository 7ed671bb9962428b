"""While the device computes one batch, the broker collects the next: here the device is done when the test says so."""

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.build.brokers import Client, OpenStage, Stage
from tests.helpers import wait_until
from zerobeast.common.wire.stream import Reply
from zerobeast.rl.acting.inference import Inference
from zerobeast.services.broker import sessions

MAX_ROWS = 4


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Cleared while the device is busy."""
    event = threading.Event()
    event.set()
    really: Callable[[Inference], bool] = Inference.done
    monkeypatch.setattr(Inference, "done", lambda self: event.is_set() and really(self))
    return event


@pytest.fixture
def the(open_stage: OpenStage, idle: threading.Event) -> Iterator[Stage]:
    yield open_stage(max_batch_rows=MAX_ROWS, max_batch_delay_s=0.0)
    idle.set()


def send(client: Client, value: float) -> None:
    client.rows["obs"] = value
    client.request(core=True)
    wait_until(lambda: (client.turn(), client.stream.waiting)[1])


def answered(client: Client, action: int) -> None:
    client.until(Reply.ANSWER)
    assert (client.answer.rows["logits"] == client.rows["obs"] + 1).all()
    assert client.answer.rows["action"].tolist() == [action] * client.n


def test_requests_are_collected_while_a_batch_is_computed(the: Stage, idle: threading.Event) -> None:
    running, collected, held = clients = [the.welcomed(n) for n in (2, 3, 3)]
    for step in (1, 2, 3):
        idle.clear()
        send(running, 10 * step)
        wait_until(lambda: the.broker.running)
        send(collected, 20 * step)
        wait_until(lambda: the.broker.batcher.rows == 3)
        send(held, 30 * step)
        wait_until(lambda: the.broker.held)
        assert len(the.broker.batcher) == 1, "what does not fit waits in the socket"
        idle.set()
        for client in clients:
            answered(client, step)
    assert max(seen.first.shape[1] for seen in the.algorithms[0].seen) <= MAX_ROWS


def test_weights_that_arrive_while_a_batch_is_computed_are_used_from_the_next_one_on(
    the: Stage, idle: threading.Event
) -> None:
    client = the.welcomed(2)
    idle.clear()
    send(client, 1)
    wait_until(lambda: the.broker.running)
    the.learner.publish(2)
    wait_until(lambda: the.broker.report()["policy_version"] == 2)
    idle.set()
    answered(client, 1)
    assert (client.answer.version, client.answer.rows["value"].tolist()) == (1, [1.0, 1.0])
    assert client.ask().version == 2


def test_slots_of_a_client_that_left_are_free_only_after_its_batch(
    the: Stage, idle: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SLOTS", 4)
    leaving = the.welcomed(2)
    idle.clear()
    send(leaving, 1)
    wait_until(lambda: the.broker.running)
    leaving.bye()
    wait_until(lambda: not the.broker.report()["clients"])
    new, next_one = the.welcomed(2), the.client(2)
    wait_until(lambda: (next_one.turn(), next_one.stream.busy)[1])
    send(new, 5)
    idle.set()
    answered(new, 1)
    next_one.until(Reply.WELCOME)
    assert next_one.ask().rows["action"].tolist() == [1, 1]


def test_a_client_that_sends_hello_while_its_batch_is_computed_gets_welcome_afterwards(
    the: Stage, idle: threading.Event
) -> None:
    client = the.welcomed(2)
    client.ask()  # its answer comes after a second WELCOME, if one is in flight
    idle.clear()
    send(client, 1)
    wait_until(lambda: the.broker.running)
    client.stream.greet_again(0.0)
    wait_until(lambda: client.turn() is None)
    idle.set()
    client.until(Reply.WELCOME)
    assert client.stream.seq == 2
    assert client.ask().rows["action"].tolist() == [3, 3], "its memory was kept"
