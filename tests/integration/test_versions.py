"""Clients of another version of the protocol, at every service that has clients."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import msgpack
import pytest
import zmq

from tests.broker_fakes import OpenStage
from tests.helpers import poll, wait_until
from tests.integration.envservers import running
from tests.learner_fakes import Opener
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.transport import ClientPort, Context, random_id
from zerobeast.common.wire.messages import Header, Kind, Plane, Reason


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


@pytest.mark.parametrize("version", [2, 4])
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
    assert (header.kind, header.version, header.slot, reason) == (Kind.ERROR, 3, 0, Reason.VERSION)
    assert sentence == f"the peer uses protocol version {version}, this process uses 3"
