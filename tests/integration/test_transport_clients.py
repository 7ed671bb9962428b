"""Several clients of one server: who hears what, who left, who came back, and who does not read."""

from contextlib import ExitStack, closing, suppress
from functools import partial

import pytest
import zmq

from tests.helpers import wait_until
from tests.integration.ports import bound_again, meet
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import PeerLost
from zerobeast.common.transport import ClientPort, Context, ServerPort, ports, random_id
from zerobeast.common.wire.messages import Header, Kind, Plane, topic

PLANE = Plane.STEPS


def answer(sender: int, seq: int) -> Header:
    return Header(Kind.OBS, sender, 0, 1, seq, ([],))


def step(sender: int, seq: int) -> Header:
    return Header(Kind.STEP, sender, 0, 1, seq)


def heard(client: ClientPort, last: int) -> list[int]:
    """Sequence numbers of the answers up to `last`."""
    seqs: list[int] = []

    def done() -> bool:
        while message := client.receive():
            assert message.header.sender == client.sender
            seqs.append(message.header.seq)
        return last in seqs

    wait_until(done)
    return seqs


def test_every_client_gets_its_own_replies_and_no_others(context: Context, endpoint: str, server: ServerPort) -> None:
    senders = [1, 256, 257, 1 << 56, random_id()]
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(ClientPort(context, PLANE, endpoint, sender))) for sender in senders]
        for client in clients:
            meet(server, client)
        for seq in range(1, 11):
            for sender in (*senders, 12345):  # the last is no client's
                assert server.send(answer(sender, seq))
        for client in clients:
            assert heard(client, 10) == list(range(1, 11))
        assert server.dropped == 0


def test_a_client_that_closes_has_departed_once_and_one_that_reopens_has_not(
    context: Context, endpoint: str, server: ServerPort
) -> None:
    with closing(ClientPort(context, PLANE, endpoint, 1)) as client:
        leaving = ClientPort(context, PLANE, endpoint, 2)
        assert not server.hears(2)
        meet(server, client)
        meet(server, leaving)
        assert server.departures() == []
        client.reopen()
        meet(server, client)
        leaving.close()
        assert 2 in wait_until(server.departures)
        assert server.departures() == []
        assert (server.hears(1), server.hears(2)) == (True, False)
        server.send(answer(1, 3))
        assert heard(client, 3) == [3]


def test_a_client_that_is_still_there_over_another_connection_has_not_departed(
    context: Context, endpoint: str, server: ServerPort
) -> None:
    with closing(ClientPort(context, PLANE, endpoint, 1)) as client, closing(ClientPort(context, PLANE, endpoint, 2)):
        with context.socket(zmq.SUB) as old:
            old.subscribe(topic(PLANE, 1))
            old.subscribe(topic(PLANE, 3))
            old.connect(Endpoint.parse(endpoint).socket(1))
            meet(server, client)
            wait_until(lambda: server.departures() == [] and server.send(answer(3, 1)) and old.poll(10))
        assert wait_until(server.departures) == [3], "the old connection has ended, but only 3 had no other"
        server.send(answer(1, 5))
        assert heard(client, 5) == [5]


def test_a_client_that_does_not_read_is_dropped_and_no_other_waits_for_it(
    context: Context, endpoint: str, server: ServerPort
) -> None:
    with ExitStack() as stack:
        stuck = stack.enter_context(closing(ClientPort(context, PLANE, endpoint, 1)))
        reading = stack.enter_context(closing(ClientPort(context, PLANE, endpoint, 2)))
        meet(server, stuck)
        meet(server, reading)
        payload = bytes(1 << 16)
        for _ in range(10_000):
            if not server.send(answer(1, 1), payload):
                break
        assert server.dropped == 1
        for seq in range(1, 21):
            assert server.send(answer(2, seq), payload)
        assert heard(reading, 20) == list(range(1, 21))
        assert heard(stuck, 1), "and it gets what was queued once it reads again"


def test_requests_to_a_server_that_does_not_read_end_in_a_refusal_to_queue(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("SEND_HWM", "RECEIVE_HWM"):
        monkeypatch.setattr(ports, limit, 2)
    with ExitStack() as stack:
        server = stack.enter_context(closing(ServerPort(context, PLANE, endpoint)))
        client = stack.enter_context(closing(ClientPort(context, PLANE, endpoint, 1)))
        meet(server, client)
        payload = bytes(1 << 20)
        sent = refused_in_a_row = 0

        def stuck() -> bool:
            nonlocal sent, refused_in_a_row
            while client.send(step(1, 0), payload):
                sent, refused_in_a_row = sent + 1, 0
                assert sent < 10_000, "memory would grow without bound"
            refused_in_a_row += 1
            return refused_in_a_row == 50

        wait_until(stuck)
        for _ in range(sent):
            assert wait_until(server.receive).frames() == [payload]


def test_a_server_with_an_epoch_sends_here_once_to_each_client_that_connects_whenever_it_starts(
    context: Context, endpoint: str
) -> None:
    with closing(ClientPort(context, PLANE, endpoint, 1)) as client:
        assert not client.send(Header(Kind.HELLO, 1, body=({},))), "what cannot leave is not queued"
        for epoch in (5, 6):
            with closing(bound_again(partial(ServerPort, context, PLANE, endpoint, epoch=epoch))) as server:
                came: list[dict[int, bool]] = []
                message = wait_until(lambda server=server, came=came: came.append(server.changes()) or client.receive())
                assert (message.header, message.more) == (Header(Kind.HERE, 1, 0, epoch), False)
                assert [changes for changes in came if changes] == [{1: True}]
                meet(server, client)
                assert server.changes() == {}
                assert client.receive() is None


def test_a_reopened_client_meets_the_server_again_and_keeps_its_sockets_if_the_name_no_longer_resolves(
    context: Context, endpoint: str, server: ServerPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_self: Endpoint) -> Endpoint:
        raise PeerLost("cannot resolve 'learner'")

    with closing(ClientPort(context, PLANE, endpoint, 1)) as client:
        meet(server, client)
        server.send(answer(1, 1), b"half", b"read")
        assert wait_until(client.receive)
        client.reopen()
        assert client.receive() is None, "what was half read is gone with the old socket"
        meet(server, client)
        with monkeypatch.context() as patch:
            patch.setattr(Endpoint, "resolved", unknown)
            with pytest.raises(PeerLost):
                client.reopen()
        meet(server, client)


def test_a_flood_of_garbage_does_not_block_the_loop_of_a_server(context: Context, server: ServerPort) -> None:
    with context.socket(zmq.PUSH) as flood:
        flood.set(zmq.LINGER, 0)
        flood.connect(server.pollable[0].get(zmq.LAST_ENDPOINT).rstrip(b"\0").decode())

        def refused(at_least: int) -> bool:
            with suppress(zmq.Again):
                while True:
                    flood.send(b"garbage", zmq.NOBLOCK)
            before = server.refused.total()
            assert server.receive() is None
            assert server.refused.total() - before <= ports.MAX_PER_CALL
            return server.refused.total() >= at_least

        wait_until(lambda: refused(2 * ports.MAX_PER_CALL))
