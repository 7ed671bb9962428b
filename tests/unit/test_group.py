"""An env group against servers that die in any state, or whose answers cannot be used. No sockets, no clock."""

import numpy as np
import pytest

from tests.build.groups import CONFIG, SERVERS, SYNCHRONOUS, TICK_S, WINDOW, Message, Play, Spoil, T, waiting
from zerobeast.common.errors import ConfigError
from zerobeast.common.health.hops import Hops
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.common.wire.stream import RESEND_LIMIT_S
from zerobeast.services.actor.group import EnvGroup
from zerobeast.services.actor.waits import Wait, Waits


@pytest.mark.parametrize("politely", [True, False], ids=["bye", "killed"])
@pytest.mark.parametrize("plane", SERVERS, ids=lambda plane: plane.name)
@pytest.mark.parametrize("wait", [Wait.ENV, Wait.BROKER, Wait.CREDIT])
def test_a_group_in_any_state_recovers_from_the_restart_of_a_server(wait: Wait, plane: Plane, politely: bool) -> None:
    play = waiting(wait)
    play.end(plane, politely=politely)
    play.start(plane)
    for _ in range(8):
        play.turn(plane)  # it is back before anything else moves
    play.goes_on()


@pytest.mark.parametrize("plane", SERVERS, ids=lambda plane: plane.name)
@pytest.mark.parametrize("wait", [Wait.ENV, Wait.BROKER, Wait.CREDIT])
def test_a_lost_session_stops_only_the_group_that_waits_for_its_answer(wait: Wait, plane: Plane) -> None:
    play = waiting(wait)
    play.end(plane, politely=True)
    stops = (wait, plane) in ((Wait.ENV, Plane.STEPS), (Wait.BROKER, Plane.INFERENCE))
    assert play.group.waits.current is (Wait.CONNECT if stops else wait)


@pytest.mark.parametrize("plane", [Plane.INFERENCE, Plane.ROLLOUTS], ids=lambda plane: plane.name)
def test_an_unrequested_welcome_opens_no_session(plane: Plane) -> None:
    play = Play()
    play.deliver(plane, play.server(plane).answer(Header(Kind.HELLO, 1, body=({"first": None},)), None))
    assert not play.group.planes[plane].stream.open
    play.goes_on()


@pytest.mark.parametrize("seed", range(40))
def test_no_order_of_restarts_and_losses_stops_a_group_or_puts_its_rollouts_out_of_step(seed: int) -> None:
    play = Play(seed, SYNCHRONOUS if seed % 2 else CONFIG)
    for _ in range(60):
        event, plane = play.random.randrange(8), play.random.choice(list(SERVERS))
        if event == 0 and play.servers[plane] is not None:
            play.end(plane, politely=play.random.random() < 0.5)
        elif event == 1 and play.servers[plane] is None:
            play.start(plane)
        elif event == 2:
            play.loss = play.random.choice([0.0, 0.0, 0.2])
        elif event == 3:
            play.stuck_learner = not play.stuck_learner
        for _ in range(play.random.randrange(12)):
            play.turn(play.random.choice([None, *SERVERS]))
    play.goes_on()


@pytest.mark.parametrize("plane", SERVERS, ids=lambda plane: plane.name)
def test_rows_of_an_opponent_are_acted_for_and_not_learned_from(plane: Plane) -> None:
    env = CONFIG.env.model_copy(update={"agents": 2, "opponent": "latest"})
    play = Play(config=CONFIG.model_copy(update={"env": env}))
    play.goes_on()
    play.end(plane, politely=False)
    play.goes_on()
    assert all(len(rows) == 1 and not (rows["obs"] % 10).any() for _, _, rows in play.used), "those of agent 0"


def test_a_rollout_that_a_dead_connection_swallowed_is_sent_again_and_not_skipped() -> None:
    play = waiting(Wait.CREDIT)
    learner = play.server(Plane.ROLLOUTS)
    last, *_ = learner.queue.pop()
    learner.ledger.received = last - 1  # as if it had never come
    learner.ledger.pending -= 1
    play.goes_on()
    assert [seq for _, seq, _ in play.used].count(last) == 1


@pytest.mark.parametrize("wait", [Wait.ENV, Wait.BROKER, Wait.CREDIT])
def test_rollouts_name_the_broker_that_acts_and_the_next_one_once_it_does(wait: Wait) -> None:
    play = waiting(wait)
    first = play.server(Plane.INFERENCE).epoch
    assert play.group.inference.acting == first
    play.start(Plane.INFERENCE)
    play.goes_on()
    assert play.group.inference.acting == play.server(Plane.INFERENCE).epoch != first
    assert {play.acts[int(obs)] for _, _, rows in play.used for obs in rows["obs"][:, 0].flat} >= {first}


def test_a_group_in_step_goes_on_once_what_it_sent_was_learned_from_and_another_plays_one_rollout_more() -> None:
    for config, ahead in ((SYNCHRONOUS, 0), (CONFIG, 1)):
        play = Play(config=config)
        play.stuck_learner = True
        for learned in range(4):
            play.deliver(Plane.ROLLOUTS, play.server(Plane.ROLLOUTS).ack())  # which makes no room
            for _ in range(60):
                play.turn()
            assert play.group.waits.current is Wait.CREDIT
            assert play.cores == WINDOW + ahead + learned, "one at the start of each rollout"
            assert play.group.rollouts.outbox.unacked == WINDOW
            assert play.steps == (WINDOW + ahead + learned) * T + 1, "RESET, and the steps of so many rollouts"
            play.deliver(Plane.ROLLOUTS, play.server(Plane.ROLLOUTS).use())
        play.goes_on()


def with_value(field: str, value: float, kind: type = float) -> Spoil:
    """Row 1 with this value, or, as uint8, with this byte in place of a bool."""

    def spoil(message: Message) -> Message:
        rows = message.frames[0][field]
        (rows.view(np.uint8) if kind is np.uint8 else rows)[1] = value
        return message

    return spoil


def without_a_row(message: Message) -> Message:
    return Message(message.header, message.frames[0][:-1])


def with_core(message: Message) -> Message:
    for core in message.frames[1:]:
        core[1] = np.inf
    return message


STEPS, INFERENCE = Plane.STEPS, Plane.INFERENCE
FAULTS: list[tuple[Plane, Spoil, str]] = [
    (STEPS, with_value("reward", float("nan")), "values"),
    (STEPS, with_value("reward", float("inf")), "values"),
    (STEPS, with_value("terminated", 2, np.uint8), "values"),
    (STEPS, without_a_row, "payload"),
    (STEPS, lambda message: Message(message.header), "payload"),
    (INFERENCE, without_a_row, "payload"),
    (INFERENCE, with_value("logits", np.nan), "values"),
    (INFERENCE, with_value("action", -1), "values"),
    (INFERENCE, with_core, "values"),
]


def spoil_one(play: Play, spoil: Spoil, plane: Plane = Plane.STEPS) -> int:
    """Have a server spoil answers until the group refuses one; returns how many HELLOs there were before."""
    server = play.server(plane)
    server.spoil, before = spoil, server.hellos
    while not play.refused:
        play.turn()
    server.spoil = None
    return int(before)


@pytest.mark.parametrize(("plane", "spoil", "reason"), FAULTS)
def test_an_answer_that_cannot_be_used_costs_a_session_and_nothing_of_it_travels_on(
    plane: Plane, spoil: Spoil, reason: str
) -> None:
    play = waiting(Wait.BROKER if plane is STEPS else Wait.ENV)
    before = spoil_one(play, spoil, plane)
    play.goes_on()
    assert [error.reason for error in play.refused] == [reason]
    assert play.server(plane).hellos == before + 1
    assert not play.group.planes[plane].stream.trouble
    assert all(np.isfinite(rows["reward"]).all() for _, _, rows in play.used)


@pytest.mark.parametrize("kind", [None, Kind.STEP], ids=["every answer", "every step"])
def test_a_server_that_sends_only_bad_answers_gets_hello_less_and_less_often(kind: Kind | None) -> None:
    play = waiting(Wait.BROKER)
    server = play.server(STEPS)
    server.spoil, server.spoilt, server.asked = with_value("reward", float("nan")), kind, 0
    until = play.now + 120
    while play.now < until:
        play.turn()
    assert server.asked < 120
    assert len(play.refused) < 30
    assert play.group.steps.stream.trouble
    server.spoil = None
    for _ in range(int((RESEND_LIMIT_S + 5) / TICK_S)):
        play.turn()
    play.goes_on()
    assert not play.group.steps.stream.trouble


def test_impossible_episodes_are_counted_and_cost_nothing_else() -> None:
    good = [1.0, 3]
    bad = [["x", -3], [1.0], 7, [[1.0], 2], [float("nan"), 3], [float("inf"), 3], [1.0, 0], [1.0, -1], [1.0, True]]

    def with_episodes(message: Message) -> Message:
        header = message.header
        return Message(Header(header.kind, 1, 0, header.epoch, header.seq, ([good, *bad],)), *message.frames)

    play = waiting(Wait.BROKER)
    before = spoil_one(play, with_episodes)
    assert [error.reason for error in play.refused] == ["episodes"]
    assert play.group.steps.episodes == [good]
    play.goes_on()
    assert play.server(STEPS).hellos == before


def test_an_impossible_offer_ends_the_actor_with_a_sentence() -> None:
    group = EnvGroup(CONFIG, sender=1, slot=0, seed=0, waits=Waits(0.0, Hops("actor", 0.0)))
    welcome = Header(Kind.WELCOME, 1, 0, 5, 0, ({"env": {"env_id": "x"}},))
    with pytest.raises(ConfigError, match="env-server at"):
        group.take(Plane.STEPS, Message(welcome), pytest.fail, 0.1)  # type: ignore[arg-type]
