"""How many rollouts each stream may begin: enough that a batch can always fill, and no more than can still be used.

A stream may begin message number `StreamLedger.limit` and those before it. From a rollout's beginning to the update
that uses its last row, the learner uses the rows that were outstanding when it began. So a bound on the outstanding
rows, those begun and not used up, bounds the policy lag: the staleness rule of AReaL (Fu et al. 2025, section 5.1).
"""

from collections.abc import Iterable, Sequence
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

    If the windows of all streams fit, each gets its window. Otherwise the stream with the fewest
    outstanding messages comes first, and among equal ones the stream that has waited longest. None is passed over for a
    smaller one, so none waits for ever. A stream that does not deliver may begin one message and takes no room.

    Args:
      window: messages that a stream may have begun without an acknowledgement.
      room: rows that may be outstanding in all.
      streams: of the connected actors.
      now: seconds, as their `asked_at`.
    """
    here = list(streams)
    before = [each.state.limit for each in here]
    if window * sum(each.state.rows for each in here) <= room:
        for each in here:
            each.state.limit = max(each.state.limit, each.state.consumed + window)
    else:
        _share(window, room, here, now)
    raised = [each for each, limit in zip(here, before, strict=True) if each.state.limit > limit]
    for each in raised:
        each.state.granted_at = now
    return raised


def _share(window: int, room: float, streams: list[Stream], now: float) -> None:
    """Divide the room among the streams that deliver."""
    active = []
    for each in streams:
        if is_delivering(each, now):
            active.append(each)
        else:
            each.state.limit = max(each.state.limit, each.state.consumed + 1)
    left = room - sum(each.state.outstanding * each.state.rows for each in active)
    while active:
        first = min(active, key=lambda each: (each.state.outstanding, each.state.granted_at))
        left -= first.state.rows
        if left < 0 or first.state.outstanding >= window:
            return
        first.state.limit = first.state.consumed + first.state.outstanding + 1


def capacity(usable: float, batch_size: int, streams: Iterable[Stream]) -> float:
    """Rows that may be outstanding so that none gets too old, and at least as many as always fill a batch.

    An older message waits for one that is used in part. To fill a batch, one message may be held back for its last
    rows, and the next in turn may be too large for what is left.

    Args:
      usable: rows that the learner uses before a rollout that begins now gets too old.
      batch_size: rows of an update.
      streams: of the connected actors.
    """
    largest = max((each.state.rows for each in streams), default=0)
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
