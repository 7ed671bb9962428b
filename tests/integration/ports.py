"""What tests of ports share."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from tests.helpers import wait_until
from zerobeast.common.errors import ConfigError
from zerobeast.common.transport import ClientPort, ServerPort
from zerobeast.common.wire.messages import Header, Kind

R = TypeVar("R")


def meet(server: ServerPort, client: ClientPort) -> None:
    """HELLO and WELCOME as sessions do it, until the subscription is in force; then empty both ends."""
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
    """A server at an address that another has just left: libzmq closes a socket in a thread of its own."""

    def bound() -> R | None:
        with suppress(ConfigError):
            return make()
        return None

    return wait_until(bound)
