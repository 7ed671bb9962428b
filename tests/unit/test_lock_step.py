"""What makes runs repeatable: batches in the order of actors, and ids and seeds that depend on who asks, not when."""

import itertools

import pytest

from tests.build.errors import refuses
from tests.build.groups import Play
from tests.build.learners import rollout_rows
from tests.build.streams import ListedRun
from zerobeast.common.config.process import Instance
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import index_of, random_id
from zerobeast.common.wire.messages import Plane
from zerobeast.common.wire.seeds import hash_seed
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
    seeds = [hash_seed(*numbers) for numbers in asked]
    assert len({seed % 2**32 for seed in seeds}) == len(asked)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert hash_seed(1, 2, 3) == 6_520_558_355_739_401_531


def test_a_deterministic_run_has_no_actor_without_a_number() -> None:
    with refuses("index"):
        Actor(RunConfig(deterministic=True), Instance()).open()
    for numbered in (Actor(RunConfig(deterministic=True), Instance(index=1)), Actor(RunConfig(), Instance())):
        numbered.open()
        numbered.close()


def seeds(index: int | None, run_seed: int = 1, start: int = 0) -> list[int]:
    """Seeds of all environments of an actor with 2 groups of 3."""
    config = RunConfig.model_validate({"seed": run_seed, "actor": {"env_groups": 2, "envs_per_group": 3}})
    groups = Actor(config, Instance(index=index, start=start)).groups
    firsts = [group.steps.stream.hello_terms["seed"] for group in groups]
    return [first + i for first in firsts for i in range(3)]


def test_the_groups_of_all_actors_take_turns_at_the_environments_of_a_run() -> None:
    played = []
    for index in range(3):
        env = {"id": "A-v0,B-v0,C-v0", "action_mask": "m"}
        config = RunConfig.model_validate({"env": env, "actor": {"env_groups": 2}})
        for group in Actor(config, Instance(index=index)).groups:
            asked = group.steps.stream.hello_terms["env"]
            assert asked["action_mask"] == "m"
            played.append(asked["id"])
    assert played == ["A-v0", "B-v0", "C-v0"] * 2


def test_numbered_actors_repeat_their_seeds_and_share_none_whatever_the_run_continues_from() -> None:
    assert seeds(1, run_seed=2) == [2_000_006 + 6 + i for i in range(6)]
    assert seeds(1, start=5000) == seeds(1, start=5000)
    starts = [0, 1, 2, 160, 5000, 5160, 10**6, 10**12]
    everything = [seed for start in starts for index in range(50) for seed in seeds(index, start=start)]
    assert len(set(everything)) == len(starts) * 50 * 6


def test_actors_without_a_number_share_no_seeds_either() -> None:
    everyone = [seed for _ in range(10) for seed in seeds(None)]
    assert len(set(everyone)) == 10 * 6
    assert all(0 <= seed < 2**31 + 3 for seed in everyone)


def test_recreated_environments_get_other_seeds() -> None:
    play = Play()
    asked = [play.group.steps.stream.hello_terms["seed"]]
    for _ in range(3):
        for _ in range(40):
            play.turn()
        asked.append(play.group.steps.stream.hello_terms["seed"])
        play.end(Plane.STEPS, politely=True)
        play.start(Plane.STEPS)
    assert asked[:2] == [0, 0], "a session that begins says what it was given"
    assert len(set(asked)) == 3
    assert all(0 <= seed < 2**31 for seed in asked)
