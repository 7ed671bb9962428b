"""Peers of another version of the protocol."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from tests.build.brokers import OpenStage
from tests.build.envservers import running
from tests.build.learners import Opener
from tests.helpers import poll, wait_until
from zerobeast.clients.env_session import EnvSession
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import VersionMismatch
from zerobeast.common.transport import ClientPort, Context, random_id
from zerobeast.common.wire.messages import PROTOCOL_VERSION, Header, Kind, Plane, Reason, topic


def refusal(context: Context, plane: Plane, endpoint: str, version: int, turn: Callable[[], Any]) -> Header:
    """A server's answer to a HELLO of a protocol version."""
    with ExitStack() as stack:
        port = stack.enter_context(closing(ClientPort(context, plane, endpoint, random_id())))
        push = stack.enter_context(context.socket(zmq.PUSH))
        push.set(zmq.LINGER, 0)
        push.connect(Endpoint.parse(endpoint).socket(0))

        def told() -> Header | None:
            push.send(msgpack.packb([version, int(Kind.HELLO), port.sender, 3, 0, 0, {}]))
            turn()
            message = port.receive()
            return message.header if message and message.header.kind is not Kind.HERE else None

        return wait_until(told)


@pytest.mark.parametrize("version", [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1])
@pytest.mark.parametrize("plane", [Plane.STEPS, Plane.INFERENCE, Plane.ROLLOUTS], ids=lambda plane: plane.name)
def test_a_client_of_another_version_gets_both_versions_in_a_sentence(
    context: Context, tmp_path: Any, open_stage: OpenStage, open_run: Opener, plane: Plane, version: int
) -> None:
    with ExitStack() as stack:
        turn: Callable[[], Any] = int  # the others turn by themselves
        if plane is Plane.STEPS:
            endpoint = f"ipc://{tmp_path}/e"
            stack.enter_context(running(endpoint))
        elif plane is Plane.INFERENCE:
            endpoint = open_stage().config.broker.endpoint
        else:
            run = open_run()
            endpoint, turn = run.learner.config.learner.endpoint, lambda: poll(run.learner, 0.001)
        header = refusal(context, plane, endpoint, version, turn)
    reason, sentence = header.body
    assert (header.kind, header.slot, reason) == (Kind.ERROR, 0, Reason.VERSION)
    assert sentence == f"the peer uses protocol version {version}, this process uses {PROTOCOL_VERSION}"


def test_a_client_gives_up_on_a_server_of_another_version(context: Context, tmp_path: Path) -> None:
    endpoint, place = f"ipc://{tmp_path}/e", Endpoint(path=f"{tmp_path}/e")
    other = PROTOCOL_VERSION - 1
    with ExitStack() as stack:
        requests, replies = (stack.enter_context(context.socket(kind)) for kind in (zmq.PULL, zmq.XPUB))
        requests.bind(place.socket(0))
        replies.bind(place.socket(1))
        session = EnvSession(context, endpoint, {"env": {}, "num_envs": 1, "seed": 0})
        stack.enter_context(closing(session))

        def answered() -> None:
            session.advance()
            if requests.poll(1):
                sender = msgpack.unpackb(requests.recv())[2]
                error = [other, int(Kind.ERROR), sender, 0, 0, 0, str(Reason.VERSION), "no"]
                replies.send(topic(Plane.STEPS, sender) + msgpack.packb(error))

        sentence = f"{endpoint}: the peer uses protocol version {other}, this process uses {PROTOCOL_VERSION}"
        with pytest.raises(VersionMismatch, match=f"^{sentence}$"):
            wait_until(answered)
