"""An env group against servers that die, in every state it can be in. No sockets, no clock."""

import pytest

from tests.build.groups import CONFIG, SERVERS, SYNCHRONOUS, WINDOW, Play, T, waiting
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.services.actor.waits import Wait


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
            for _ in range(60):
                play.turn()
            assert play.group.waits.current is Wait.CREDIT
            assert play.group.rollouts.outbox.unacked == WINDOW
            assert play.steps == (WINDOW + ahead + learned) * T + 1, "RESET, and the steps of so many rollouts"
            play.deliver(Plane.ROLLOUTS, play.server(Plane.ROLLOUTS).use())
        play.goes_on()
