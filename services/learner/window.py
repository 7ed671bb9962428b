"""How many rollouts each stream may begin: enough that a batch can always fill, and no more than can still be used.

A stream may begin message number `StreamLedger.limit` and those before it. Rows are outstanding from then until an
update has used them. By Little's law, a rollout is used after as many rows as are outstanding on average, so a bound on
these rows bounds the policy lag, if all streams play equally fast: the staleness rule of AReaL (Fu et al. 2025, section
5.1). A stream that is much slower than the others can still be late.
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace
from math import ceil, gcd

from zerobeast.common.wire.messages import MAX_WINDOW
from zerobeast.common.wire.session import Session
from zerobeast.services.learner.ledger import StreamLedger

LONG_AGO = float("-inf")
PATIENCE_S = 60.0  #: how long to wait for streams that have credit and send nothing, while others have none
ACTIVE_S = 10.0  #: a stream that has had credit and sent no rollout for this long does not help to fill a batch

Stream = Session[StreamLedger]


def window(configured: int, batch_size: int, streams: Iterable[Stream], now: float) -> int:
    """Messages that each stream must be allowed to have in flight.

    Only streams that deliver count: a HELLO, which costs nothing, must not narrow the windows of the others. If
    none delivers, each of them alone has to be able to fill a batch.

    Args:
      configured: the window if no more is needed.
      batch_size: rows of an update.
      streams: of the connected actors.
      now: seconds, as their `asked_at`.
    """
    here = list(streams)
    rows = [each.state.rows for each in here if is_delivering(each, now)]
    smallest = min((each.state.rows for each in here), default=batch_size)
    return min(MAX_WINDOW, max(configured, window_needed(batch_size, rows or [smallest])))


def admit(window: int, room: float, streams: Iterable[Stream], now: float) -> list[Stream]:
    """Raise the limits of streams that may begin another rollout; returns those streams.

    If the windows of all streams fit, each gets its window. Otherwise the stream with the fewest outstanding messages
    comes first, and among equal ones the stream that has waited longest. None is passed over for a smaller one, so none
    waits for ever. A stream that has sent nothing yet may begin one message and takes no room from the others: a HELLO
    costs nothing.

    Args:
      window: messages that a stream may have begun without an acknowledgement.
      room: rows that may be outstanding in all.
      streams: of the connected actors.
      now: seconds, as their `asked_at`.
    """
    here = list(streams)
    if window * sum(each.state.rows for each in here) <= room:
        raised = [each for each in here if each.state.outstanding < window]
        for each in raised:
            each.state.grant(each.state.consumed + window, now)
        return raised
    new = [each for each in here if each.asked_at is None and not each.state.outstanding]
    for each in new:
        each.state.grant(each.state.consumed + 1, now)
    return new + _take_turns([each for each in here if _may_deliver(each, now)], window, room, now)


def _take_turns(streams: list[Stream], window: int, room: float, now: float) -> list[Stream]:
    """Grant messages one at a time until the room is used up; returns the streams that got any."""
    left = room - sum(each.state.outstanding * each.state.rows for each in streams)
    line = [(each.state.outstanding, each.state.granted_at, n) for n, each in enumerate(streams)]
    heapify(line)
    raised: dict[int, Stream] = {}
    while line:
        outstanding, _, n = line[0]
        state = streams[n].state
        left -= state.rows
        if left < 0 or outstanding >= window:
            break
        state.grant(state.consumed + outstanding + 1, now)
        raised[n] = streams[n]
        heapreplace(line, (outstanding + 1, now, n))
    return list(raised.values())


def _may_deliver(stream: Stream, now: float) -> bool:
    """Whether the stream has sent rollouts, and has not had credit for so long that it may have ended."""
    if stream.asked_at is None or not has_credit(stream):
        return stream.asked_at is not None
    return now - max(stream.asked_at, stream.state.granted_at) < PATIENCE_S


def capacity(usable: float, batch_size: int, streams: Iterable[Stream]) -> float:
    """Rows that may be outstanding so that none gets too old, and at least as many as always fill a batch.

    An older message waits for one that is used in part. To fill a batch, one message may be held back for its last
    rows, and the next in turn may be too large for what is left.

    Args:
      usable: rows that the learner uses before a rollout that begins now gets too old.
      batch_size: rows of an update.
      streams: of the connected actors; of those that have sent nothing, only if there are no others.
    """
    here = list(streams)
    rows = [each.state.rows for each in here if each.asked_at is not None] or [each.state.rows for each in here]
    largest = max(rows, default=0)
    return max(usable - largest, batch_size + 2 * largest)


def is_delivering(stream: Stream, now: float) -> bool:
    """Whether the stream has sent rollouts, and lately if it has credit for more."""
    return stream.asked_at is not None and (not has_credit(stream) or is_active(stream, now))


def is_active(stream: Stream, now: float) -> bool:
    """Whether the stream has sent rollouts, and has sent one or got credit for another within `ACTIVE_S`."""
    return stream.asked_at is not None and now - max(stream.asked_at, stream.state.granted_at) < ACTIVE_S


def has_credit(stream: Stream) -> bool:
    """Whether the stream may send a rollout before the next acknowledgement."""
    return stream.state.limit > stream.state.received


def is_exhausted(streams: Iterable[Stream], now: float) -> bool:
    """Whether no row can come before the next acknowledgement: all streams that deliver have used up their credit.

    Credit is enough for a batch of good rollouts; refused or stale ones use it up and fill none. While no stream
    delivers, those with credit are waited for, since environments may just be slow, but not for ever.
    """
    here = list(streams)
    credit = [each for each in here if has_credit(each)]
    if any(is_active(each, now) for each in credit):
        return False
    newest = max((each.asked_at for each in here if each.asked_at is not None), default=LONG_AGO)
    waited = not credit or now - newest > PATIENCE_S
    return any(is_active(each, now) for each in here) or (len(credit) < len(here) and waited)


def all_waiting(rows: int, streams: Iterable[Stream]) -> bool:
    """Whether streams with at least `rows` rows are connected and all have used up their credit.

    Missing rows can then only come after the next acknowledgement. Unlike `is_exhausted`, this does not depend on time.
    """
    here = list(streams)
    return sum(each.state.rows for each in here) >= rows and not any(has_credit(each) for each in here)


def window_needed(batch_size: int, rows: Sequence[int]) -> int:
    """Messages that each stream must be allowed to have in flight so that a batch can always fill.

    A message is acknowledged when an update has used its last row. One message can thus be held back for its last
    rows, which are a multiple of gcd(its rows, batch_size); all other rows of the windows must complete a batch with
    them: window * sum(rows) - max(rows) + gcd >= batch_size.

    Args:
      batch_size: rows of an update.
      rows: rows per message of each stream.
    """
    held_back = min(gcd(each, batch_size) for each in rows)
    return ceil((batch_size - held_back + max(rows)) / sum(rows))
