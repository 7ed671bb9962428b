"""A client, as the rules of one see it, and a server that answers it well but for the steps of a script."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.transport import Context, Poller, ServerPort
from zerobeast.common.wire.messages import (
    ANSWERS,
    Frames,
    Header,
    Kind,
    Plane,
    Reason,
)

SOON_S, LONG_S = 0.4, 60.0  #: how long a client may wait for a server that does not answer, and for one that does
Answer = Callable[[Header], tuple[tuple[Any, ...], Frames]]
Ask = Callable[[], object]


@dataclass(frozen=True)
class Client:
    """A client of a plane.

    Attributes:
      plane: what it is a client of.
      offer: terms of a WELCOME that suit it.
      answer: body and frames of a good answer to a request.
      opened: opens it at an endpoint, with the time that it may wait; yields a call that returns once a further request
        was answered. On leaving it is closed, and a socket that it leaves open is an error.
      misfit: terms of a WELCOME that it cannot use, if there are any.
      survives: whether it goes on by itself when the server has lost its session; otherwise it raises PeerLost.
    """

    plane: Plane
    offer: Mapping[str, Any]
    answer: Answer
    opened: Callable[[str, float], AbstractContextManager[Ask]]
    misfit: Mapping[str, Any] | None = None
    survives: bool = True


@dataclass
class Script:
    """A server in a thread, which answers well unless a step of its script does something else."""

    client: Client
    port: ServerPort
    epoch: int
    start: int = 0  #: seq of its WELCOME
    steps: list[Callable[["Script", Header], bool]] = field(default_factory=list)  #: each True once it has had its turn
    heard: list[tuple[Header, list[bytes]]] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)

    def serve(self) -> None:
        """Take what is there."""
        self.gone.update(self.port.departures())
        while message := self.port.receive():
            header = message.header
            self.heard.append((header, message.frames()))
            if self.steps and self.steps[0](self, header):
                self.steps.pop(0)
            elif is_request(header) and header.epoch != self.epoch:
                self.say(header, Kind.ERROR, str(Reason.UNKNOWN_SESSION), "who is it?")
            elif header.kind is not Kind.BYE:
                self.reply(header)

    def reply(self, asked: Header, **changes: Any) -> None:
        """Answer a message well, but for changes of the header."""
        if asked.kind is Kind.HELLO:
            offer, seq = dict(self.client.offer), self.start
            self.say(asked, Kind.WELCOME, offer, **{"seq": seq, **changes})
        else:
            body, frames = self.client.answer(asked)
            kind = ANSWERS.get(asked.kind, Kind.ACK)
            header = Header(kind, asked.sender, asked.slot, self.epoch, asked.seq, body)
            self.port.send(replace(header, **changes), *frames)

    def say(self, asked: Header, kind: Kind, *body: Any, **changes: Any) -> None:
        """Send a message without frames to whom this came from."""
        header = Header(kind, asked.sender, asked.slot, self.epoch, asked.seq, body)
        self.port.send(replace(header, **changes))

    def of(self, *kinds: Kind) -> list[Header]:
        """The messages so far of these kinds, or, without any, the requests."""
        others = (Kind.HELLO, Kind.BYE)
        return [header for header, _ in self.heard if (header.kind in kinds if kinds else header.kind not in others)]


Step = Callable[[Script, Header], bool]


@contextmanager
def serve_script(
    client: Client, endpoint: str, *steps: Step, epoch: int = 5, start: int = 0, context: Context | None = None
) -> Iterator[Script]:
    """A scripted server."""
    stopping, failed = threading.Event(), list[BaseException]()
    with ExitStack() as stack:
        if context is None:
            context = Context()
            stack.callback(context.term)
        port = stack.enter_context(closing(_bind_port(context, client.plane, endpoint, epoch)))
        script = Script(client, port, epoch, start, list(steps))

        def run() -> None:
            poller = Poller([port])
            try:
                while not stopping.is_set():
                    poller.wait(0.01)
                    script.serve()
            except BaseException as error:  # raised again below
                failed.append(error)

        thread = threading.Thread(target=run)
        stack.callback(thread.join)
        stack.callback(stopping.set)
        thread.start()
        yield script
    if failed:
        raise failed.pop()


def _bind_port(context: Context, plane: Plane, endpoint: str, epoch: int) -> ServerPort:
    """A port at an endpoint that may have just been left: libzmq closes sockets in its own thread."""
    for _ in range(1000):
        with suppress(ConfigError):
            return ServerPort(context, plane, endpoint, epoch=epoch)
        threading.Event().wait(0.01)
    return ServerPort(context, plane, endpoint, epoch=epoch)


def is_request(header: Header) -> bool:
    """Whether it is one of the requests that a plane is there for."""
    return header.kind not in (Kind.HELLO, Kind.BYE)


def replace_answer(act: Callable[[Script, Header], object], *, of: Callable[[Header], bool] = is_request) -> Step:
    """A step that does this instead of the next good answer."""

    def step(script: Script, header: Header) -> bool:
        if of(header):
            act(script, header)
        return of(header)

    return step


def is_hello(header: Header) -> bool:
    return header.kind is Kind.HELLO


def expect_end(client: Client, endpoint: str, kind: type[BeastError], *, limit_s: float = LONG_S) -> BeastError:
    """The error of this kind with which a client, or a call of it, ends."""
    try:
        with client.opened(endpoint, limit_s) as ask:
            for _ in range(3):
                ask()
    except kind as error:
        return error
    raise AssertionError(f"it goes on, expected {kind.__name__}")
