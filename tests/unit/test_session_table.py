"""The server's half of a conversation, with plain numbers for time."""

from zerobeast.common.wire.messages import Header, Kind
from zerobeast.common.wire.session import UNUSED_S, Arrival, Session, SessionTable

ME, SLOT, EPOCH = 7, 2, 99


def hello(sender: int = ME, slot: int = SLOT) -> Header:
    return Header(Kind.HELLO, sender, slot, body=({},))


def test_a_session_does_a_request_once() -> None:
    session: Session[None] = Session(ME, SLOT, None, opened_at=0.0)
    assert [session.arrival(seq) for seq in (0, 1, 1)] == [Arrival.STALE, Arrival.NEW, Arrival.PENDING]
    session.reply = (Header(Kind.OBS, ME, SLOT, EPOCH, 1, ([],)), (b"rows",))
    assert [session.arrival(seq) for seq in (1, 2)] == [Arrival.REPEATED, Arrival.NEW]
    assert session.reply is None
    assert [session.arrival(seq) for seq in (1, 0)] == [Arrival.STALE, Arrival.STALE]


def test_a_table_finds_sessions_by_sender_and_slot_within_its_epoch() -> None:
    table: SessionTable[str] = SessionTable(EPOCH)
    assert table.of(hello()) is None
    session = table.open(hello(), "state", now=0.0)
    assert table.of(hello()) is table.of(Header(Kind.BYE, ME, SLOT)) is session
    assert table.of(Header(Kind.STEP, ME, SLOT, EPOCH, 1)) is session
    for others in ((ME, SLOT + 1, EPOCH), (ME + 1, SLOT, EPOCH), (ME, SLOT, EPOCH + 1)):
        assert table.of(Header(Kind.STEP, *others, 1)) is None


def test_a_client_leaves_with_all_its_sessions() -> None:
    table: SessionTable[None] = SessionTable(EPOCH, limit=3)
    for sender, slot in ((1, 0), (1, 1), (2, 0), (2, 0)):
        last = table.open(hello(sender, slot), None, now=0.0)
    assert table.senders == {1, 2}
    assert table.full
    assert [session.slot for session in table.leave(1)] == [0, 1]
    assert [session.sender for session in table] == [2]
    assert table.leave(1) == []
    for _ in range(2):
        table.close(last)
    assert (len(table), table.full, set(table.senders)) == (0, False, set())


def test_a_session_that_asks_for_nothing_is_unused_after_a_while() -> None:
    table: SessionTable[None] = SessionTable(EPOCH)
    silent, busy = (table.open(hello(slot=slot), None, now=100.0) for slot in (0, 1))
    busy.asked_at = 101.0
    assert table.unused(100.0 + UNUSED_S) == []
    assert table.unused(101.1 + UNUSED_S) == [silent]
    assert table.unused(101.2 + UNUSED_S) == [], "it looks once a second"
    assert table.unused(300.0, awake_since=290.0) == [], "a server that stood still has not heard it"
