"""What makes runs repeatable: batches in the order of actors, and ids and seeds that depend on who asks, not when."""

import itertools

import pytest

from tests.build.errors import refused
from tests.build.learners import rollout_rows
from tests.build.streams import ListedRun
from zerobeast.common.config.process import Instance
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import index_of, random_id
from zerobeast.common.wire.seeds import counted
from zerobeast.services.actor.service import Actor
from zerobeast.services.learner.ledger import SavedLedger


def push(run: ListedRun, sender: int) -> None:
    """Push one rollout of an actor, with the sender as its reward."""
    rows = rollout_rows(run.rows[sender])
    rows["reward"] = sender
    run.outboxes[sender].push(rows, [], run.now)


def batch(run: ListedRun) -> list[float] | None:
    """The senders of the next batch's rows; None if no batch is complete."""
    run.exchange()
    rows = run.intake.take(run.now)
    if rows is None:
        return None
    senders = rows["reward"][:, 0].tolist()
    run.intake.use(len(rows), learned=True)
    run.exchange()
    return senders


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (3, 2, 1)])
def test_a_batch_has_a_rollout_of_every_actor_in_their_order(order: tuple[int, ...]) -> None:
    run = ListedRun({1: 2, 2: 2, 3: 2}, batch=6, window=1, lock_step=True)
    run.start(epoch=7, saved=SavedLedger())
    run.exchange()
    for _ in range(2):
        run.now += 100.0  # however long it takes
        for sender in order:
            assert batch(run) is None
            push(run, sender)
            assert not run.outboxes[sender].room
        assert batch(run) == [1, 1, 2, 2, 3, 3]


def test_no_short_batch_is_taken_before_all_actors_have_joined() -> None:
    run = ListedRun({1: 2, 2: 2}, batch=4, window=1, lock_step=True)
    run.start(epoch=7, saved=SavedLedger())
    late = run.outboxes.pop(2)
    run.exchange()
    push(run, 1)
    for _ in range(3):
        run.now += 100.0
        assert batch(run) is None
    assert not run.outboxes[1].room, "one rollout each, whoever is there"
    run.outboxes[2] = late
    run.exchange()
    push(run, 2)
    assert batch(run) == [1, 1, 2, 2]


def test_the_id_of_a_counted_client_begins_with_its_number() -> None:
    ids = {random_id(number): number for number in (0, 1, 1234, 65_535) for _ in range(20)}
    assert len(ids) == 4 * 20
    assert all(0 < each < 2**63 and index_of(each) == number for each, number in ids.items())
    assert [ids[each] for each in sorted(ids)] == sorted(ids.values())


def test_seeds_depend_on_every_number_in_the_bits_that_torch_uses() -> None:
    asked = [*itertools.product(range(3), repeat=5), (2**31 - 1, 65_535, 63, 2**63, 2**63)]
    seeds = [counted(*numbers) for numbers in asked]
    assert len({seed % 2**32 for seed in seeds}) == len(asked)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert counted(1, 2, 3) == 6_520_558_355_739_401_531


def test_a_deterministic_run_has_no_actor_without_a_number() -> None:
    with refused("index"):
        Actor(RunConfig(deterministic=True), Instance()).open()
    for numbered in (Actor(RunConfig(deterministic=True), Instance(index=1)), Actor(RunConfig(), Instance())):
        numbered.open()
        numbered.close()
