"""Bad input from a peer is refused in words and counted, and the other peers do not notice."""

import time

import pytest
import zmq
from torch import nn

from tests.build.brokers import ECHO_ENV, Client, OpenStage, Stage
from tests.helpers import wait_until
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import ConfigError
from zerobeast.common.wire.codec import pack
from zerobeast.common.wire.messages import PROTOCOL_VERSION, Header, Kind, pack_header
from zerobeast.common.wire.session import YIELDS_S
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.common.wire.stream import Reply


def refusal(client: Client) -> str:
    """Send HELLO until the broker refuses for good, and return why."""
    with pytest.raises(ConfigError) as caught:
        client.until(Reply.WELCOME)
    return str(caught.value)


def test_garbage_is_counted_and_harms_no_client(the: Stage) -> None:
    garbage = [
        ([b""], "header"),
        ([b"\xc1garbage"], "header"),
        ([pack([PROTOCOL_VERSION, 99, 5, 0, 0, 0])], "header"),
        ([pack([PROTOCOL_VERSION + 1, 1, 5]), b"x"], "version"),
        ([pack_header(Header(Kind.STEP, 5)), b"rows"], "kind"),
        ([pack_header(Header(Kind.HELLO, 5, body=({"num_envs": 1, "env": {"obs_shape": "x"}},)))], "spec"),
        ([pack_header(Header(Kind.HELLO, 5, body=({},)))], "terms"),
        ([pack_header(Header(Kind.INFER, 5, epoch=6, seq=1, body=(False,))), b"rows"], "session"),
    ]
    client = the.welcomed(2)
    with the.context.socket(zmq.PUSH) as socket:
        socket.setsockopt(zmq.LINGER, 5000)
        socket.connect(Endpoint.parse(the.config.broker.endpoint).socket(0))
        for number, (frames, reason) in enumerate(garbage, start=1):
            before = the.refused(reason)
            socket.send_multipart(frames)
            wait_until(lambda: the.refused(reason) == before + 1)  # noqa: B023
            assert client.ask().rows["action"].tolist() == [number] * 2


def test_a_payload_of_the_wrong_size_leaves_no_trace(open_stage: OpenStage) -> None:
    """Between two good requests of a batch a client sends a wrong payload, then the right one."""
    the = open_stage(max_batch_delay_s=10.0)
    before, bad, after = clients = [the.welcomed(2) for _ in range(3)]
    wrong = [[b"\xff" * size] for size in (0, 1, 64, 129, 100_000)]
    for step, frames in enumerate([*wrong, [before.rows.tobytes(), b"more"]], start=1):
        for number, client in enumerate(clients):
            client.rows["obs"] = [[number, step, 0], [number, step, 1]]
            client.request()
        header, rows = bad.message()
        before.turn()
        wait_until(lambda: len(the.broker._batcher) == 1)
        bad.port.send(header, *frames)
        wait_until(lambda: the.refused("payload") == step)  # noqa: B023
        after.turn()
        wait_until(lambda: len(the.broker._batcher) == 2)
        bad.port.send(header, rows)
        for client in clients:
            client.until(Reply.ANSWER)
            assert client.answer.rows["logits"].tolist() == (client.rows["obs"] + 1).tolist()
            assert client.answer.rows["action"].tolist() == [step, step]


def test_an_unknown_session_is_asked_to_send_hello_again(the: Stage) -> None:
    client = the.welcomed()
    client.bye()
    wait_until(lambda: not the.broker.report()["clients"])
    client.request()
    client.until(Reply.LOST)
    assert the.refused("session") == 1
    client.until(Reply.WELCOME)
    assert client.ask().rows["action"].tolist() == [1]


def test_a_second_request_before_the_first_is_answered_is_refused(open_stage: OpenStage) -> None:
    the = open_stage(max_batch_delay_s=10.0)
    hasty, silent = the.welcomed(), the.welcomed()
    hasty.request()
    header, rows = hasty.message()
    hasty.port.send(header, rows)
    hasty.port.send(Header(Kind.INFER, header.sender, 0, header.epoch, header.seq + 1, (False,)), rows)
    wait_until(lambda: the.refused("overlap") == 1)
    silent.ask()
    hasty.until(Reply.ANSWER)
    assert [step.first.shape[1] for step in the.algorithms[0].seen[1:]] == [2]


def test_another_environment_is_refused_with_the_difference(the: Stage) -> None:
    the.welcomed()
    other = EnvSpec(ECHO_ENV.env_id, ArraySpace.box((4,)), ECHO_ENV.action)
    sentence = refusal(the.client(env=other))
    assert "obs.shape is [4]" in sentence
    assert "this broker serves Echo-v0 with [3]" in sentence
    assert the.refused("terms") >= 1


@pytest.mark.parametrize("weights", [False, True], ids=["without weights", "with weights of the same description"])
@pytest.mark.parametrize("leaves", [True, False], ids=["and leaves", "and stays"])
def test_the_first_hello_does_not_decide_what_is_served_before_anything_is_learned(
    open_stage: OpenStage, *, leaves: bool, weights: bool
) -> None:
    the = open_stage(versions=())
    first = the.client(env=EnvSpec(ECHO_ENV.env_id, ArraySpace.box((4,)), ECHO_ENV.action))
    first.until(Reply.WELCOME)
    if weights:
        the.learner.publish(0)
        wait_until(lambda: (first.turn(), the.broker.report()["policy_version"] == 0)[1])
        first.ask()
    else:
        first.request()
        wait_until(lambda: first.turn() is None and len(the.broker._batcher))
    second = the.client()
    if leaves:
        first.bye()
        wait_until(lambda: not the.broker.report()["clients"])
    else:
        wait_until(lambda: (second.turn(), "this broker serves Echo-v0 with [4]" in second.stream.busy)[1])
        the.broker.clock = lambda: time.monotonic() + YIELDS_S + 1
    second.until(Reply.WELCOME)
    the.learner.publish(1)
    wait_until(lambda: second.ask().version == 1)
    assert "this broker serves Echo-v0 with [3]" in refusal(the.client(env=first.env))


def test_an_impossible_number_of_environments_is_refused(the: Stage) -> None:
    for num_envs in (0, -1, 17, 1.5, "many", None, True):
        assert "expected 1 to 16" in refusal(the.client(num_envs=num_envs))


def test_an_environment_that_the_algorithm_cannot_handle_is_refused_in_its_words(the: Stage) -> None:
    box = EnvSpec("Box-v0", ArraySpace.box((3,)), ArraySpace.box((1,), low=(-1.0,), high=(1.0,)))
    sentence = refusal(the.client(env=box))
    assert "actions are box" in sentence
    assert the.welcomed().ask().version == 1, "the next one is served"


def test_an_environment_too_large_for_the_batch_is_refused(open_stage: OpenStage) -> None:
    huge = EnvSpec("Huge-v0", ArraySpace.box((1 << 22,)), ECHO_ENV.action, frame_stack=9)
    sentence = refusal(open_stage(max_batch_rows=32).client(env=huge))
    assert "Huge-v0: 32 observations (broker.max_batch_rows)" in sentence


def test_weights_of_another_architecture_are_refused_and_named(the: Stage) -> None:
    client = the.welcomed()
    the.learner.publish(2, nn.Linear(3, 3))
    wait_until(lambda: the.refused("layout") == 1)
    assert "architecture differs" in the.broker.report()["weights_refused"]
    assert client.ask().version == 1
    the.learner.publish(3)
    wait_until(lambda: client.ask().version == 3)
    assert the.broker.report()["weights_refused"] == ""


def test_damaged_or_misdescribed_weights_are_refused(the: Stage) -> None:
    client = the.welcomed()
    the.learner.publish(2, checksum=1)
    wait_until(lambda: the.refused("checksum") == 1)
    the.learner.publish(3, n_bytes=8)
    wait_until(lambda: the.refused("layout") == 1)
    answer = client.ask()
    assert (answer.version, answer.rows["value"].tolist()) == (1, [1.0])


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


def test_too_many_clients_are_asked_to_come_again(open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerobeast.services.broker.sessions.MAX_SLOTS", 4)
    the = open_stage()
    first, second = the.welcomed(3), the.client(2)
    replies = []
    wait_until(lambda: replies.append(second.turn()) or Reply.STALE in replies)
    assert not second.stream.open
    first.bye()
    second.until(Reply.WELCOME)


def test_a_device_that_is_not_there_ends_the_broker_with_a_sentence(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    the = open_stage(device="cuda")
    with pytest.raises(ConfigError, match="cuda"):
        the.stop()
