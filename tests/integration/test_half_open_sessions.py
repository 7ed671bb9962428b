"""HELLO costs its sender nothing, so what a server keeps for one that sends nothing else is bounded and expires."""

import os
import resource
from contextlib import ExitStack, closing
from typing import Any

import pytest

from tests.build.envs import COUNTER
from tests.build.envservers import running
from tests.build.learners import B, FakeActor, Opener, OpenRun, rollout_rows
from tests.helpers import wait_until
from zerobeast.common.transport import ClientPort, Context, random_id
from zerobeast.common.wire.messages import Header, Kind, Plane, Reason
from zerobeast.services.envserver import sessions

STEPS: dict[str, Any] = {"env": {"id": "CartPole-v1"}, "num_envs": 1, "seed": 0}


def window_of(actor: FakeActor) -> int:
    """The window that the newest reply grants."""
    newest = actor.replies[-1]
    return int(newest.body[1] if newest.kind is Kind.ACK else newest.body[0]["window"])


def delivers(run: OpenRun, actor: FakeActor, others: list[FakeActor], batches: int) -> None:
    """Send one row at a time, as far as the window allows, until `batches` batches have been learned from."""
    sent = 0

    def learned() -> bool:
        nonlocal sent
        consumed = max(actor.acked, default=0)
        while sent - consumed < window_of(actor):
            sent += 1
            actor.push(sent, rollout_rows(1, sent))
        return consumed >= batches * B

    run.drive([actor, *others], learned)


def test_sessions_that_only_send_hello_do_not_narrow_the_window_of_those_that_deliver(open_run: Opener) -> None:
    """A batch has 4 rows and the actor sends 1 at a time: with a window of 1 nothing would ever be learned."""
    run = open_run(window=1)
    greeters = run.crowd(20)
    delivers(run, run.welcomed(num_envs=1), greeters, batches=5)


def test_a_storm_of_greetings_starts_few_processes_at_a_time(
    context: Context, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_IN_THE_MAKING", 2)
    with running(endpoint, workers=1) as server, ExitStack() as stack:
        ports = [ClientPort(context, Plane.STEPS, endpoint, random_id()) for _ in range(12)]
        most = 0

        def all_wait() -> bool:
            nonlocal most
            for port in ports:
                port.send(Header(Kind.HELLO, port.sender, body=({**STEPS, "env": {"id": COUNTER}},)))
            making = [held.state.env for held in list(server.table) if held.welcome is None]
            most = max(most, sum(bool(env.files) for env in making))
            return len(server.table) == len(ports)

        for port in ports:
            stack.callback(port.close)
        wait_until(all_wait)
        stack.close()
        wait_until(lambda: len(server.table) == 0)
        assert most <= 2


def reply(port: ClientPort, **changes: Any) -> Header:
    """The answer to HELLO, which is repeated until there is one."""

    def answer() -> Header | None:
        port.send(Header(Kind.HELLO, port.sender, body=({**STEPS, **changes},)))
        heard = port.receive()
        return heard.header if heard and heard.header.kind is not Kind.HERE else None

    return wait_until(answer)


def test_a_server_without_file_descriptors_refuses_and_goes_on(context: Context, endpoint: str) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with running(endpoint, workers=1) as server, ExitStack() as stack:
        first, second = (
            stack.enter_context(closing(ClientPort(context, Plane.STEPS, endpoint, random_id()))) for _ in range(2)
        )
        assert reply(first).kind is Kind.WELCOME
        wait_until(lambda: second.send(Header(Kind.BYE, second.sender)) and server.port.hears(second.sender))
        taken = {int(file) for file in os.listdir("/proc/self/fd")}
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(set(range(len(taken) + 1)) - taken), limits[1]))
        try:
            refused = reply(second, env={"id": COUNTER})
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert refused.body[0] == Reason.ENVIRONMENT
        # a HELLO that was still in flight has opened a session after all
        wait_until(lambda: second.send(Header(Kind.BYE, second.sender)) and len(server.table) == 1)
