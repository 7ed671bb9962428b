"""Helpers for tests of ports."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from tests.helpers import wait_until
from zerobeast.common.errors import ConfigError
from zerobeast.common.transport import ClientPort, ServerPort
from zerobeast.common.wire.messages import Header, Kind

R = TypeVar("R")


def meet(server: ServerPort, client: ClientPort) -> None:
    """Exchange HELLO and WELCOME as sessions do until the subscription is in force, then empty both queues."""
    welcome = Header(Kind.WELCOME, client.sender, 0, 1, 0, ({},))

    def met() -> bool:
        client.send(Header(Kind.HELLO, client.sender, body=({},)))
        while server.receive():
            server.send(welcome)
        return client.receive() is not None

    wait_until(met)
    client.send(Header(Kind.BYE, client.sender))
    while wait_until(server.receive).header.kind is not Kind.BYE:
        pass
    server.send(Header(Kind.BYE, client.sender))
    while wait_until(client.receive).header.kind is not Kind.BYE:
        pass


def bound_again(make: Callable[[], R]) -> R:
    """Bind an address that another server has just left, with retries: libzmq closes sockets in its own thread."""

    def bound() -> R | None:
        with suppress(ConfigError):
            return make()
        return None

    return wait_until(bound)
