"""What a broker cannot serve or use is refused and counted, and the other peers do not notice."""

import time
from dataclasses import replace
from functools import partial

import pytest
from torch import nn

from tests.build.brokers import ECHO_ENV, Client, OpenStage, Stage
from tests.build.errors import refused as expected
from tests.helpers import wait_until
from zerobeast.common.errors import Refused
from zerobeast.common.wire.messages import Reason
from zerobeast.common.wire.session import YIELDS_S
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.stream import Reply

OTHER = nn.Linear(3, 3)


def refused(client: Client) -> str:
    """Send HELLO until the broker refuses for good, and return why."""
    with expected(kind=Refused, reason=Reason.TERMS) as caught:
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
