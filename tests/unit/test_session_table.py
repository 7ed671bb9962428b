"""The server's half of a conversation, with plain numbers for time."""

from zerobeast.common.wire.messages import Header, Kind
from zerobeast.common.wire.session import UNUSED_S, Arrival, Session, SessionTable

ME, SLOT, EPOCH = 7, 2, 99


def test_a_session_does_a_request_once() -> None:
    session: Session[None] = Session(ME, SLOT, None, opened_at=0.0)
    assert session.arrival(0) is Arrival.STALE, "number 0 is no request"
    assert session.arrival(1) is Arrival.NEW
    assert session.arrival(1) is Arrival.PENDING
    session.reply = (Header(Kind.OBS, ME, SLOT, EPOCH, 1, ([],)), (b"rows",))
    assert session.arrival(1) is Arrival.REPEATED
    assert session.arrival(2) is Arrival.NEW
    assert session.reply is None
    assert session.arrival(1) is Arrival.STALE
    assert session.arrival(0) is Arrival.STALE


def test_a_table_finds_sessions_by_sender_and_slot_within_its_epoch() -> None:
    table: SessionTable[str] = SessionTable(EPOCH)
    hello = Header(Kind.HELLO, ME, SLOT, body=({},))
    assert table.of(hello) is None
    session = table.open(hello, "state", now=0.0)
    assert table.of(hello) is session
    assert table.of(Header(Kind.STEP, ME, SLOT, EPOCH, 1)) is session
    assert table.of(Header(Kind.STEP, ME, SLOT + 1, EPOCH, 1)) is None
    assert table.of(Header(Kind.STEP, ME + 1, SLOT, EPOCH, 1)) is None
    assert table.of(Header(Kind.STEP, ME, SLOT, EPOCH + 1, 1)) is None, "a request to an earlier start of the server"


def test_a_client_leaves_with_all_its_sessions() -> None:
    table: SessionTable[None] = SessionTable(EPOCH)
    for sender, slot in ((1, 0), (1, 1), (2, 0)):
        table.open(Header(Kind.HELLO, sender, slot), None, now=0.0)
    assert table.senders == {1, 2}
    assert [session.slot for session in table.leave(1)] == [0, 1]
    assert [session.sender for session in table] == [2]
    assert table.leave(1) == []


def test_a_table_is_full_at_its_limit_and_has_room_again_when_a_session_closes() -> None:
    table: SessionTable[None] = SessionTable(EPOCH, limit=1)
    session = table.open(Header(Kind.HELLO, ME, SLOT), None, now=0.0)
    assert table.full
    table.close(session)
    table.close(session)
    assert not table.full
    assert len(table) == 0


def test_a_session_that_asks_for_nothing_is_unused_after_a_while() -> None:
    table: SessionTable[None] = SessionTable(EPOCH)
    silent, busy = (table.open(Header(Kind.HELLO, ME, slot), None, now=100.0) for slot in (0, 1))
    busy.asked_at = 101.0
    assert table.unused(100.0 + UNUSED_S) == []
    assert table.unused(101.1 + UNUSED_S) == [silent]
    assert table.unused(101.2 + UNUSED_S) == [], "it looks once a second"
    assert table.unused(300.0, awake_since=290.0) == [], "a server that stood still has not heard it"
