"""The rules of a plane name what is wrong with a server that breaks them."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.transport import Context, ServerPort, random_id
from zerobeast.common.wire.messages import ANSWERS, Header, Kind, Plane
from zerobeast.common.wire.session import Arrival, Session, SessionTable
from zerobeast.testing import driven_peers, plane
from zerobeast.testing.driven_peers import Counts, Request, Server
from zerobeast.testing.rules import BrokenRule, Rule

FAULTS = {
    "it does the work twice": plane.a_repeated_request_is_answered_again_and_done_once,
    "it answers a foreign epoch": plane.a_request_of_another_start_is_refused,
    "it ignores BYE": plane.bye_ends_the_session,
    "it keeps who has gone": plane.a_client_that_has_gone_makes_room,
    "it greets who does not listen": plane.a_client_that_does_not_listen_gets_no_session,
}
TERMS = {"num_envs": 1}


class Toy:
    """A server that counts the requests of each session, and has one fault."""

    def __init__(self, context: Context, endpoint: str, fault: str = "") -> None:
        self.fault, self.epoch = fault, random_id()
        self.port = ServerPort(context, Plane.INFERENCE, endpoint, epoch=self.epoch)
        self.table: SessionTable[list[int]] = SessionTable(self.epoch)

    def turn(self) -> None:
        while message := self.port.receive():
            try:
                self.take(message.header, [bytes(frame) for frame in message.frames()])
            except RemoteProtocolError as error:
                self.port.reject(message.header, error, epoch=self.epoch)
        for sender in self.port.departures():
            if self.fault != "it keeps who has gone":
                self.table.leave(sender)

    def take(self, header: Header, frames: list[bytes]) -> None:
        asked = header
        if self.fault == "it answers a foreign epoch":
            asked = Header(header.kind, header.sender, header.slot, self.epoch, header.seq)
        session = self.table.of(asked)
        if header.kind is Kind.BYE:
            if session is not None and self.fault != "it ignores BYE":
                self.table.close(session)
        elif header.kind is Kind.HELLO:
            self.greet(header)
        elif header.kind not in ANSWERS or session is None:
            raise RemoteProtocolError("there is no such session", "session" if header.kind in ANSWERS else "kind")
        elif frames != [b"rows"]:
            raise RemoteProtocolError("other rows", "payload")
        else:
            self.work(header, session)

    def work(self, header: Header, session: Session[list[int]]) -> None:
        arrival = session.arrival(header.seq)
        if arrival is Arrival.NEW or (arrival is Arrival.REPEATED and self.fault == "it does the work twice"):
            session.state.append(header.seq)
            body = (len(session.state),)
            session.reply = Header(Kind.ACT, header.sender, header.slot, self.epoch, header.seq, body), (b"rows",)
        if arrival is not Arrival.STALE and session.reply is not None:
            self.port.send(session.reply[0], *session.reply[1])

    def greet(self, header: Header) -> None:
        if header.body[0] != TERMS:
            raise RemoteProtocolError("num_envs: expected 1", "terms")
        if not self.port.hears(header.sender) and self.fault != "it greets who does not listen":
            return
        session = self.table.of(header) or self.table.open(header, [], 0.0)
        self.port.send(Header(Kind.WELCOME, header.sender, header.slot, self.epoch, session.seq, ({},)))

    def counts(self) -> Counts:
        work = sum(len(session.state) for session in self.table)
        return Counts(len(self.table), self.port.refused.total(), work)


@contextmanager
def serving(folder: Path, fault: str = "") -> Iterator[Server]:
    """A toy that is served in the test's thread."""
    context, endpoint = Context(), f"ipc://{folder}/t"
    try:
        toy = Toy(context, endpoint, fault)
        with closing(toy.port):
            yield Server(
                endpoint,
                Plane.INFERENCE,
                TERMS,
                lambda _number, _offer: Request(Kind.INFER, (False,), (b"rows",)),
                misfits=({"num_envs": 0},),
                counts=toy.counts,
                turn=toy.turn,
            )
    finally:
        context.term()


@pytest.mark.parametrize("rule", plane.RULES, ids=str)
def test_a_server_without_a_fault_keeps_every_rule(tmp_path: Path, rule: Rule) -> None:
    with serving(tmp_path) as server:
        rule(server)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_breaks_the_rule_that_forbids_it(tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driven_peers, "LIMIT_S", 2.0)
    with serving(tmp_path, fault) as server, pytest.raises(BrokenRule, match=f"^{FAULTS[fault].name}: "):
        FAULTS[fault](server)
