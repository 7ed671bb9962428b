"""How many messages each stream may have in flight, so that a batch can always fill."""

from collections.abc import Iterable, Sequence
from math import ceil, gcd

from zerobeast.common.wire.messages import MAX_WINDOW
from zerobeast.common.wire.session import Session
from zerobeast.services.learner.ledger import StreamLedger

LONG_AGO = float("-inf")
PATIENCE_S = 60.0  #: how long to wait for streams that have credit and send nothing, while others have none
ACTIVE_S = 10.0  #: a stream that has sent no rollout for this long does not help to fill a batch


def window(configured: int, batch_size: int, streams: Iterable[Session[StreamLedger]], now: float) -> int:
    """The window to grant now.

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


def is_delivering(stream: Session[StreamLedger], now: float) -> bool:
    """Whether the stream has sent rollouts recently."""
    return stream.asked_at is not None and now - stream.asked_at < ACTIVE_S


def is_exhausted(window: int, streams: Iterable[Session[StreamLedger]], now: float) -> bool:
    """Whether no row can come before the next acknowledgement: all streams that deliver have used up their windows.

    Windows are wide enough for a batch of good rollouts; refused or stale ones use them up and fill none. While no
    stream delivers, those with credit are waited for, since environments may just be slow, but not for ever.
    """
    here = list(streams)
    credit = [each for each in here if each.state.received - each.state.consumed < window]
    if any(is_delivering(each, now) for each in credit):
        return False
    newest = max((each.asked_at for each in here if each.asked_at is not None), default=LONG_AGO)
    waited = not credit or now - newest > PATIENCE_S
    return any(is_delivering(each, now) for each in here) or (len(credit) < len(here) and waited)


def all_waiting(window: int, rows: int, streams: Iterable[Session[StreamLedger]]) -> bool:
    """Whether streams with at least `rows` rows are connected and all have used up their windows.

    Missing rows can then only come after the next acknowledgement. Unlike `is_exhausted`, this does not depend on time.
    """
    here = list(streams)
    return sum(each.state.rows for each in here) >= rows and all(
        each.state.received - each.state.consumed >= window for each in here
    )


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
