"""Every rollout is used once, over any number of starts of the learner, and the ledger says what became of it."""

from typing import Any

import numpy as np
import pytest

from tests.build.learners import rollout_rows
from tests.build.streams import ListedRun
from zerobeast.common.wire.session import Arrival
from zerobeast.services.learner.ledger import SavedLedger, StreamLedger

BATCH, WINDOW, SENDERS = 4, 2, (11, 22)


class World(ListedRun):
    """Two actors, and one learner after another. Every row has its own number."""

    def __init__(self, seed: int, rows: int) -> None:
        super().__init__(dict.fromkeys(SENDERS, rows), BATCH, WINDOW, seed)
        self.epoch, self.made = 0, 0
        self.saved: tuple[dict[str, Any], list[int]] = (SavedLedger().state(), [])
        self.restart()

    def restart(self) -> None:
        """Start a learner that continues from the checkpoint."""
        self.epoch += 1
        state, used = self.saved
        self.used = list(used)
        self.start(self.epoch, SavedLedger.load(state))

    def checkpoint(self) -> None:
        self.saved = (self.intake.record().state(), list(self.used))

    def act(self, sender: int) -> None:
        """Complete a rollout if there is room."""
        if self.outboxes[sender].room:
            rows = rollout_rows(self.rows[sender])
            rows["policy_version"] = self.made + np.arange(len(rows))[:, None]
            self.made += len(rows)
            self.outboxes[sender].push(rows, [], self.now)

    def learn(self) -> None:
        queue = self.intake.queue
        if (batch := queue.take()) is not None:
            self.used += batch["policy_version"][:, 0].tolist()
            self.intake.use(BATCH, learned=self.random.random() < 0.9)

    def turn(self, loss: float = 0.0) -> None:
        self.now += 0.1
        for sender in SENDERS:
            self.act(sender)
        self.exchange(loss)
        self.learn()

    def balance(self) -> None:
        """Let everything arrive, then check that no row was used twice and the ledger accounts for every one."""
        for _ in range(400):
            self.now += 0.1
            self.exchange(0.0)
            self.learn()
        queue, ledger = self.intake.queue, self.intake.ledger
        assert len(self.used) == len(set(self.used)), "used twice"
        assert ledger.used + ledger.skipped == len(self.used)
        assert ledger.used + ledger.skipped + ledger.undone + queue.usable == self.made
        assert queue.usable < BATCH
        assert ledger.refused == self.port.refused.total() == 0
        for sender, slot, rows, received, _, _ in self.intake.page()["streams"]:
            assert (slot, rows, received) == (0, self.rows[sender], self.outboxes[sender].seq)


@pytest.mark.parametrize("rows", [1, 3, 4, 6])
@pytest.mark.parametrize("seed", range(12))
def test_learners_that_die_at_any_moment_use_every_rollout_once_and_count_what_is_undone(seed: int, rows: int) -> None:
    world = World(seed, rows)
    for _ in range(150):
        world.turn(0.2 if world.random.random() < 0.05 else 0.0)
        event = world.random.randrange(12)
        if event == 0:
            world.checkpoint()
        elif event == 1:
            world.restart()
    world.balance()


def test_a_learner_that_ends_in_order_loses_nothing() -> None:
    world = World(0, rows=3)
    for turn in range(60):
        world.turn()
        if turn % 10 == 9:
            world.checkpoint()
            world.restart()
    world.balance()
    assert world.intake.ledger.undone == 0


def test_rollouts_that_a_killed_learner_had_used_and_acknowledged_are_undone() -> None:
    world = World(0, rows=4)
    for _ in range(5):
        world.turn()
    assert world.used
    world.exchange(0.0)  # the last acknowledgements arrive
    used = len(world.used)
    world.restart()
    world.balance()
    assert world.intake.ledger.undone == used


def test_the_ledger_records_what_is_new_waiting_or_used() -> None:
    ledger = StreamLedger()
    assert ledger.arrival(57) is Arrival.NEW, "the first is not known yet"
    ledger.take(57)
    assert ledger.arrival(57) is Arrival.PENDING
    assert ledger.arrival(58) is Arrival.NEW
    ledger.use(57)
    assert ledger.arrival(57) is Arrival.REPEATED
    assert ledger.pending == 0


def test_a_number_that_skips_another_is_ahead_unless_the_first_is_not_known() -> None:
    ledger = StreamLedger()
    ledger.take(5)
    assert ledger.arrival(7) is Arrival.AHEAD
    ledger.use(5)
    assert ledger.arrival(7) is Arrival.AHEAD, "what is used up counts as received"
    assert ledger.arrival(6) is Arrival.NEW
    anew = StreamLedger()
    anew.use(5)  # left in the queue by a session before
    assert anew.arrival(7) is Arrival.AHEAD


def test_the_first_number_announced_by_hello_has_to_come_first() -> None:
    ledger = StreamLedger(rows=4)
    assert ledger.begin(1) == 0
    assert ledger.arrival(2) is Arrival.AHEAD, "1 was lost on its way"
    assert ledger.arrival(1) is Arrival.NEW
    assert StreamLedger(rows=4).begin(58) == 57 * 4
    known = StreamLedger(4, received=50, consumed=50, begun=3)
    assert known.begin(51) == 0
    assert known.take(51) == 3, "three of its rows are in the checkpoint"
    silent = StreamLedger(4, received=50, consumed=50)
    silent.anchored = True
    assert silent.begin(None) == 0
    assert silent.arrival(58) is Arrival.NEW, "a client that does not say which comes first may begin anywhere"
    known = StreamLedger(4, received=50, consumed=50, begun=3)
    assert known.begin(53) == 2 * 4 - 3
    assert known.take(53) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"ledger": {"eaten": 1}},
        {"ledger": {"used": "x"}},
        {"streams": [[1, 2]]},
        {"streams": [["x"] * 5]},
    ],
)
def test_an_invalid_saved_ledger_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        SavedLedger.load(SavedLedger().state() | wrong)
