"""Which streams may begin a rollout: streams of any speed, and a learner that uses the oldest policy first."""

import random
from collections.abc import Callable
from functools import partial
from itertools import count
from math import ceil

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.build.learners import rollout_rows
from tests.build.streams import ListedRun
from zerobeast.common.wire.messages import MAX_WINDOW, Header, Kind
from zerobeast.common.wire.session import Session
from zerobeast.services.learner.ledger import SavedLedger, StreamLedger
from zerobeast.services.learner.queue import Message, RolloutQueue
from zerobeast.services.learner.window import PATIENCE_S, admit, capacity, is_exhausted, window

ROW = np.dtype([("x", "u1")])
DAY_S = 86_400.0


class Loop:
    """Streams of some rows each, which begin no more than is admitted, and an update of `batch` rows at most each turn.

    Args:
      rows: per message of each stream.
      batch: rows of an update.
      lag: versions that a rollout may be old.
      turns: that a stream plays for a rollout: returns a new number for each.
    """

    def __init__(self, rows: list[int], batch: int, lag: int, turns: Callable[[], int]) -> None:
        self.turns = turns
        self.streams = [
            Session(sender, 0, StreamLedger(each, anchored=True), 0.0, asked_at=0.0)
            for sender, each in enumerate(rows, start=1)
        ]
        self.batch, self.queue = batch, RolloutQueue(lambda n: np.zeros(n, ROW), batch)
        self.room = capacity(lag * batch, batch, self.streams)
        self.version, self.now = 0, 0.0
        self.playing: dict[int, tuple[int, int]] = {}  #: version at which a stream's rollout began, turns to its end
        self.begun_at: dict[tuple[int, int], int] = {}  #: the same by sender and number, of rollouts that are finished
        self.lags: list[int] = []
        self.short = 0

    @property
    def outstanding(self) -> int:
        return sum(each.state.outstanding * each.state.rows for each in self.streams)

    def turn(self) -> None:
        """Let streams begin and finish rollouts, then learn if a batch is there."""
        self.now += 0.1
        needed = window(1, self.batch, self.streams, self.now)
        admit(needed + 1, self.room, self.streams, self.now)
        for each in self.streams:
            state = each.state
            if each.sender not in self.playing and state.received < state.limit:
                self.playing[each.sender] = self.version, self.turns()
            if each.sender not in self.playing:
                continue
            version, left = self.playing.pop(each.sender)
            if left > 1:
                self.playing[each.sender] = version, left - 1
            else:
                each.asked_at = self.now
                state.take(state.received + 1)
                self.begun_at[each.sender, state.received] = version
                message = Message(each.sender, 0, state.received, state.rows, version=version)
                self.queue.put(message, np.zeros(state.rows, ROW), by_age=True)
        self._learn()

    def _learn(self) -> None:
        short = is_exhausted(self.streams, self.now)
        if self.queue.take(short=short) is None:
            return
        self.short += len(self.queue.origins) < self.batch
        senders = {(int(sender), int(seq)) for sender, _slot, seq, *_ in self.queue.origins}
        self.lags += [self.version - self.begun_at[each] for each in senders]
        for message in self.queue.release():
            self.streams[message.sender - 1].state.use(message.seq)
        self.version += 1


SIZES = st.lists(st.integers(1, 24), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(rows=SIZES, batch=st.integers(1, 40), lag=st.integers(0, 20), seed=st.integers(0, 1000))
def test_outstanding_rows_stay_within_the_capacity_every_batch_fills_and_every_stream_goes_on(
    rows: list[int], batch: int, lag: int, seed: int
) -> None:
    loop = Loop(rows, batch, lag, partial(random.Random(seed).randint, 1, 5))
    for _ in range(60):
        loop.turn()
        assert loop.outstanding <= loop.room
    before = [each.state.consumed for each in loop.streams]
    for _ in range(8 * (batch + sum(rows))):
        loop.turn()
    assert not loop.short
    assert all(each.state.consumed > old for each, old in zip(loop.streams, before, strict=True))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 64), rows=st.integers(1, 16), batch=st.integers(1, 32), lag=st.integers(4, 20), varies=...)
def test_no_rollout_gets_older_than_the_lag_unless_its_stream_is_slower_than_the_others(
    n: int, rows: int, batch: int, lag: int, varies: bool
) -> None:
    slowest = lag // 2
    loop = Loop([rows] * n, batch, lag, partial(random.Random(n).randint, 1 if varies else slowest, slowest))
    for _ in range(200):
        loop.turn()
    assert max(loop.lags, default=0) <= max(lag, ceil((loop.room + rows) / batch)) + varies * slowest


def test_streams_that_have_sent_nothing_use_no_room_and_may_begin_one_rollout() -> None:
    streams = [Session(i, 0, StreamLedger(4), 0.0, asked_at=0.0 if i < 2 else None) for i in range(100)]
    admit(3, 24, streams, 1.0)
    assert [each.state.limit for each in streams] == [3, 3, *[1] * 98]
    admit(3, 24, streams[:2], DAY_S)
    assert [each.state.limit for each in streams[:2]] == [3, 3], "credit is never taken back"


def test_a_stream_that_may_have_ended_holds_no_room() -> None:
    _hung, *others = streams = [Session(i, 0, StreamLedger(4), 0.0, asked_at=0.0) for i in range(3)]
    admit(2, 12, streams, 1.0)
    assert [each.state.limit for each in streams] == [1, 1, 1]
    now = 2.0 + PATIENCE_S
    for each in others:
        each.asked_at = now
    admit(2, 12, streams, now)
    assert [each.state.limit for each in streams] == [1, 2, 1]


def test_streams_that_have_used_their_credit_come_in_turn() -> None:
    streams, order = [Session(i, 0, StreamLedger(4), 0.0, asked_at=0.0) for i in range(5)], []
    for now in map(float, count(1)):
        order += [each.sender for each in admit(2, 8, streams, now)]
        if len(order) >= 15:
            break
        oldest = min((each for each in streams if each.state.outstanding), key=lambda each: each.state.granted_at)
        oldest.state.take(oldest.state.received + 1)
        oldest.state.use(oldest.state.received)
        oldest.asked_at = now
    assert order == [0, 1, 2, 3, 4] * 3


def push_all(run: ListedRun, version: int = 0) -> None:
    """Send as many rollouts of this policy as the windows admit."""
    for sender, outbox in run.outboxes.items():
        while outbox.room:
            rows = rollout_rows(run.rows[sender])
            rows["policy_version"] = version
            outbox.push(rows, [], run.now)
    run.now += 0.1
    run.exchange()


def test_a_batch_of_more_rollouts_than_a_window_may_hold_is_learned_from_in_parts() -> None:
    run = ListedRun({1: 1}, batch=MAX_WINDOW + 1, window=1, ahead=1)
    run.start(1, SavedLedger())
    for _ in range(4):
        push_all(run)
    assert not run.port.refused
    taken = run.intake.take(run.now)
    assert taken is not None
    assert len(taken) == MAX_WINDOW


def test_hello_grants_a_stream_that_waits_its_turn_nothing() -> None:
    run = ListedRun(dict.fromkeys(range(1, 31), 4), batch=4, window=1, ahead=1)
    run.start(1, SavedLedger())
    run.intake.usable = 16
    push_all(run)
    push_all(run)
    while run.intake.take(run.now) is not None and run.intake.queue.usable > 12:
        run.intake.use(4, learned=True)
        run.exchange()
    assert sum(outbox.room for outbox in run.outboxes.values()) < 5, "most wait for their turn"
    push_all(run)
    before = [outbox.seq for outbox in run.outboxes.values()]
    for outbox in run.outboxes.values():
        outbox.stream.greet_again(run.now)
    for _ in range(3):
        push_all(run)
    assert [outbox.seq for outbox in run.outboxes.values()] == before


def test_a_policy_newer_than_the_learner_counts_as_its_newest() -> None:
    run = ListedRun({1: 4, 2: 4}, batch=4, window=1)
    run.start(1, SavedLedger())
    run.intake.usable, run.intake.version = 100.0, 3
    run.exchange()
    for sender, version in ((1, 300), (2, 3)):  # the first is of an earlier start of the learner
        rows = rollout_rows(4)
        rows["policy_version"] = version
        run.outboxes[sender].push(rows, [], run.now)
        run.exchange()
    assert run.intake.take(run.now) is not None
    assert set(run.intake.queue.origins[:, 0]) == {1}, "in the order of arrival"


def test_credit_that_was_lost_with_a_connection_is_asked_for_on_the_next() -> None:
    run = ListedRun({1: 4}, batch=4, window=1)
    run.start(1, SavedLedger())
    run.exchange()
    outbox = run.outboxes[1]
    outbox.accept(Header(Kind.ACK, 1, 0, 1, 0, (0, 0, None)), run.now)
    assert outbox.due(run.now) is None
    outbox.accept(Header(Kind.HERE, 1, 0, 1), run.now)
    due = outbox.due(run.now + 1.0)
    assert due is not None
    assert due[0].kind is Kind.HELLO
