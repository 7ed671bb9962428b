"""The whole broker over real sockets: each client gets its own answers; what cannot be served or used is refused."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count

import pytest
from torch import nn

from tests.build.brokers import ECHO_ENV, ECHO_POLICY, Client, OpenStage, Stage
from tests.build.errors import refuses as expected
from tests.helpers import wait_until
from zerobeast.common.errors import RequestRefused
from zerobeast.common.wire.messages import Kind, Reason
from zerobeast.common.wire.session import YIELDS_S
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.stream import Reply
from zerobeast.rl.acting.inference import Inference
from zerobeast.services.broker import sessions


def test_every_client_gets_exactly_its_own_rows(endpoint: str, open_stage: OpenStage) -> None:
    clients_in_all, requests = 12, 20
    the = open_stage(endpoint=endpoint, max_batch_rows=24, max_batch_delay_s=0.001)
    clients = [the.client(n) for n in random.Random(0).choices(range(1, 5), k=clients_in_all)]
    answers = dict.fromkeys(range(clients_in_all), 0)

    def turn(number: int, client: Client) -> None:
        if client.turn() is Reply.ANSWER:
            assert client.answer.rows["logits"].tolist() == (client.rows["obs"] + 1).tolist()
            assert client.answer.rows["action"].tolist() == [answers[number] + 1] * client.n
            assert client.answer.cores is None, "the state travels only when it is wanted"
            answers[number] += 1
        if client.stream.open and not client.stream.waiting and answers[number] < requests:
            client.rows["obs"] = [[number, answers[number], row] for row in range(client.n)]
            client.request()

    def all_done() -> bool:
        for number, client in enumerate(clients):
            turn(number, client)
        return min(answers.values()) == requests

    wait_until(all_done, timeout_s=120)
    assert all(client.turn() is None for client in clients), "no client gets anything twice"
    assert the.broker.report()["refused"] == 0
    batches = [step.first.shape[1] for step in the.algorithms[0].seen[1:]]
    assert sum(batches) == sum(requests * client.n for client in clients)
    assert max(batches) <= 24
    assert len(batches) < clients_in_all * requests, "requests share batches"


def test_brokers_draw_by_the_seed_of_the_run_their_number_and_the_start_step(ipc: str, open_stage: OpenStage) -> None:
    def drawn_by(version: int = 0, seed: int = 1, index: int = 0) -> set[int]:
        the = open_stage(endpoint=f"{ipc}{next(numbers)}", versions=(version,), seed=seed, index=index)
        client = the.welcomed()
        client.ask()
        the.learner.publish(version + 1)
        wait_until(lambda: (client.ask(), the.broker.report()["policy_version"] > version)[1])
        client.ask()
        return set(the.algorithms[0].seeds[1:])  # the first is a trial

    numbers = count()
    assert drawn_by() == drawn_by() == {1}, "later versions change nothing"
    others = [drawn_by(version=5), drawn_by(version=6), drawn_by(seed=2), drawn_by(index=1), drawn_by(seed=2, index=1)]
    assert others[2] == {2}, "the first broker of a run draws by the seed of the run"
    assert len(set.union({1}, *others)) == 6


def test_clients_get_welcome_at_once_and_answers_once_there_are_weights(open_stage: OpenStage) -> None:
    the = open_stage(versions=(), max_batch_rows=4)
    clients = [the.client(n) for n in (2, 1, 3)]
    for client in clients:
        client.until(Reply.WELCOME)
        assert client.stream.terms == {"policy": ECHO_POLICY.to_wire()}

    def waiting() -> int:
        for client in clients:
            client.turn()
        return len(the.broker.batcher)

    for client, most in zip(clients, (1, 2, 2), strict=True):  # what fits
        client.request()
        wait_until(lambda most=most: waiting() == most)  # type: ignore[misc]
    assert the.broker.running is None
    the.learner.publish(7)
    for client in clients:
        client.until(Reply.ANSWER)
        assert client.answer.version == 7


def kinds_until_bye(client: Client) -> list[Kind]:
    """What comes up to BYE, but for answers to messages that were repeated."""
    kinds: list[Kind] = []

    def goodbye() -> bool:
        message = client.port.receive()
        kinds.extend([message.header.kind] if message else [])
        return Kind.BYE in kinds

    wait_until(goodbye)
    return [kind for kind in kinds if kind not in (Kind.WELCOME, Kind.HERE)]


@pytest.mark.parametrize(("versions", "kinds"), [((1,), [Kind.ACT, Kind.BYE]), ((), [Kind.BYE])])
def test_stopping_answers_what_was_asked_if_there_are_weights_and_sends_bye(
    open_stage: OpenStage, versions: tuple[int, ...], kinds: list[Kind]
) -> None:
    the = open_stage(versions=versions, max_batch_delay_s=10.0)
    asking, silent = the.client(2), the.client(1)
    for client in (asking, silent):
        client.until(Reply.WELCOME)
    asking.request()
    version = max(versions, default=-1)
    wait_until(lambda: (asking.turn(), the.broker.report()["policy_version"] == version)[1])
    wait_until(lambda: len(the.broker.batcher))
    the.broker.stop()
    assert kinds_until_bye(asking) == kinds
    assert kinds_until_bye(silent) == [Kind.BYE]


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
def paused(open_stage: OpenStage, idle: threading.Event) -> Iterator[Stage]:
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


def test_requests_are_collected_while_a_batch_is_computed(paused: Stage, idle: threading.Event) -> None:
    running, collected, held = clients = [paused.welcomed(n) for n in (2, 3, 3)]
    for step in (1, 2, 3):
        idle.clear()
        send(running, 10 * step)
        wait_until(lambda: paused.broker.running)
        send(collected, 20 * step)
        wait_until(lambda: paused.broker.batcher.rows == 3)
        send(held, 30 * step)
        wait_until(lambda: paused.broker.held)
        assert len(paused.broker.batcher) == 1, "what does not fit waits in the socket"
        idle.set()
        for client in clients:
            answered(client, step)
    assert max(seen.first.shape[1] for seen in paused.algorithms[0].seen) <= MAX_ROWS


def test_weights_that_arrive_during_a_batch_are_used_from_the_next_one_on(paused: Stage, idle: threading.Event) -> None:
    client = paused.welcomed(2)
    idle.clear()
    send(client, 1)
    wait_until(lambda: paused.broker.running)
    paused.learner.publish(2)
    wait_until(lambda: paused.broker.report()["policy_version"] == 2)
    idle.set()
    answered(client, 1)
    assert (client.answer.version, client.answer.rows["value"].tolist()) == (1, [1.0, 1.0])
    assert client.ask().version == 2


def test_slots_of_a_client_that_left_are_free_only_after_its_batch(
    paused: Stage, idle: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SLOTS", 4)
    leaving = paused.welcomed(2)
    idle.clear()
    send(leaving, 1)
    wait_until(lambda: paused.broker.running)
    leaving.bye()
    wait_until(lambda: not paused.broker.report()["clients"])
    new, next_one = paused.welcomed(2), paused.client(2)
    wait_until(lambda: (next_one.turn(), next_one.stream.busy)[1])
    send(new, 5)
    idle.set()
    answered(new, 1)
    next_one.until(Reply.WELCOME)
    assert next_one.ask().rows["action"].tolist() == [1, 1]


OTHER = nn.Linear(3, 3)


def refused(client: Client) -> str:
    """Send HELLO until the broker refuses for good, and return why."""
    with expected(kind=RequestRefused, reason=Reason.TERMS) as caught:
        client.until(Reply.WELCOME)
    return str(caught.error)


def test_a_payload_of_the_wrong_size_leaves_no_trace(open_stage: OpenStage) -> None:
    """Between two good requests of a batch a client sends a wrong payload, then the right one."""
    the = open_stage(max_batch_delay_s=10.0)
    before, bad, after = clients = [the.welcomed(2) for _ in range(3)]
    wrong = [[b"\xff" * size] for size in (0, 129, 100_000)]
    for step, frames in enumerate([*wrong, [before.rows.tobytes(), b"more"]], start=1):
        for number, client in enumerate(clients):
            client.rows["obs"] = [[number, step, 0], [number, step, 1]]
            client.request()
        header, (rows,) = bad.stream.due(time.monotonic())
        before.turn()
        wait_until(lambda: len(the.broker.batcher) == 1)
        bad.port.send(header, *frames)
        wait_until(lambda: the.refused("payload") == step)  # noqa: B023
        after.turn()
        wait_until(lambda: len(the.broker.batcher) == 2)
        bad.port.send(header, rows)
        for client in clients:
            client.until(Reply.ANSWER)
            assert client.answer.rows["logits"].tolist() == (client.rows["obs"] + 1).tolist()
            assert client.answer.rows["action"].tolist() == [step, step]


@pytest.mark.parametrize("weights", [False, True], ids=["without weights", "with weights of the same description"])
@pytest.mark.parametrize("leaves", [True, False], ids=["and leaves", "and stays"])
def test_the_first_hello_does_not_decide_what_is_served_before_anything_is_learned(
    open_stage: OpenStage, *, leaves: bool, weights: bool
) -> None:
    the = open_stage(versions=())
    first = the.client(env=replace(ECHO_ENV, obs=ArraySpace.box((4,))))
    first.until(Reply.WELCOME)
    if weights:
        the.learner.publish(0)
        wait_until(lambda: (first.turn(), the.broker.report()["policy_version"] == 0)[1])
        first.ask()
    else:
        first.request()
        wait_until(lambda: first.turn() is None and len(the.broker.batcher))
    second = the.client()
    if leaves:
        first.bye()
        wait_until(lambda: not the.broker.report()["clients"])
    else:
        wait_until(lambda: (second.turn(), second.stream.busy)[1])
        the.broker.clock = lambda: time.monotonic() + YIELDS_S + 1
    second.until(Reply.WELCOME)
    the.learner.publish(1)
    wait_until(lambda: second.ask().version == 1)
    assert "obs.shape" in refused(the.client(env=first.env)), "once something is learned"


def test_environments_that_cannot_be_served_are_refused_and_the_next_one_is_served(open_stage: OpenStage) -> None:
    the = open_stage(max_batch_rows=32)
    continuous = replace(ECHO_ENV, action=ArraySpace.box((1,), low=(-1.0,), high=(1.0,)))
    huge = replace(ECHO_ENV, obs=ArraySpace.box((1 << 22,)), frame_stack=9)
    for env, named in ((continuous, "actions"), (huge, "broker.max_batch_rows")):
        assert named in refused(the.client(env=env))
    assert the.welcomed().ask().version == 1


def test_damaged_or_misdescribed_weights_are_refused(the: Stage) -> None:
    client = the.welcomed()
    the.learner.publish(2, checksum=1)
    wait_until(lambda: the.refused("checksum") == 1)
    for wrong, publish in enumerate((partial(the.learner.publish, n_bytes=8), partial(the.learner.publish, net=OTHER))):
        publish(3 + wrong)
        wait_until(lambda wrong=wrong: the.refused("layout") == wrong + 1)
    assert the.broker.report()["weights_refused"]
    answer = client.ask()
    assert (answer.version, answer.rows["value"].tolist()) == (1, [1.0])
    the.learner.publish(5)
    wait_until(lambda: client.ask().version == 5)
    assert the.broker.report()["weights_refused"] == ""


def test_old_versions_are_ignored_within_an_epoch_and_accepted_from_a_new_one(the: Stage) -> None:
    client = the.welcomed()
    the.learner.publish(9)
    wait_until(lambda: client.ask().version == 9)
    the.learner.publish(4)
    the.learner.publish(10)
    wait_until(lambda: client.ask().version == 10)
    former = the.learner.epoch
    the.learner.epoch = former + 2
    the.learner.publish(3)
    wait_until(lambda: client.ask().version == 3)
    the.learner.epoch = former
    the.learner.publish(11)
    the.learner.epoch = former + 2
    the.learner.publish(4)
    versions = []
    wait_until(lambda: versions.append(client.ask().version) or versions[-1] == 4)
    assert set(versions) <= {3, 4}, "a learner that ended does not come back"
