"""An env group against servers that die or cannot be used, and its rollouts in flight. No sockets, no clock."""

import numpy as np
import pytest

from tests.build.groups import CONFIG, SERVERS, TICK_S, WINDOW, Message, Play, Spoil, T, play_until_wait
from zerobeast.common.errors import ConfigError
from zerobeast.common.health.hops import Hops
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.common.wire.stream import RESEND_LIMIT_S, Reply, Stream
from zerobeast.services.actor.group import EnvGroup
from zerobeast.services.actor.outbox import MAX_EPISODES, MAX_WAITING_EPISODES, Outbox
from zerobeast.services.actor.waits import TIMEOUTS, Wait, Waits


@pytest.mark.parametrize("politely", [True, False], ids=["bye", "killed"])
@pytest.mark.parametrize("plane", SERVERS, ids=lambda plane: plane.name)
@pytest.mark.parametrize("wait", [Wait.ENV, Wait.BROKER, Wait.CREDIT])
def test_a_group_in_any_state_recovers_from_the_restart_of_a_server(wait: Wait, plane: Plane, politely: bool) -> None:
    play = play_until_wait(wait)
    play.end(plane, politely=politely)
    play.start(plane)
    for _ in range(8):
        play.turn(plane)  # it is back before anything else moves
    play.goes_on()


@pytest.mark.parametrize("plane", SERVERS, ids=lambda plane: plane.name)
@pytest.mark.parametrize("wait", [Wait.ENV, Wait.BROKER, Wait.CREDIT])
def test_a_lost_session_stops_only_the_group_that_waits_for_its_answer(wait: Wait, plane: Plane) -> None:
    play = play_until_wait(wait)
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
    play = Play(seed)
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
    play = play_until_wait(Wait.CREDIT)
    learner = play.server(Plane.ROLLOUTS)
    last, *_ = learner.queue.pop()
    learner.ledger.received = last - 1  # as if it had never come
    learner.ledger.pending -= 1
    play.goes_on()
    assert [seq for _, seq, _ in play.used].count(last) == 1


@pytest.mark.parametrize("wait", [Wait.ENV, Wait.BROKER, Wait.CREDIT])
def test_rollouts_name_the_broker_that_acts_and_the_next_one_once_it_does(wait: Wait) -> None:
    play = play_until_wait(wait)
    first = play.server(Plane.INFERENCE).epoch
    assert (play.group.inference.acting, play.group.inference.version_drops) == (first, 0)
    play.start(Plane.INFERENCE)
    play.goes_on()
    assert play.group.inference.acting == play.server(Plane.INFERENCE).epoch != first
    assert {play.acts[int(obs)] for _, _, rows in play.used for obs in rows["obs"][:, 0].flat} >= {first}


def test_a_group_begins_no_rollout_beyond_its_window() -> None:
    play = Play()
    play.stuck_learner = True
    for learned in range(4):
        play.deliver(Plane.ROLLOUTS, play.server(Plane.ROLLOUTS).ack())  # which makes no room
        for _ in range(60):
            play.turn()
        assert play.group.waits.current is Wait.CREDIT
        assert play.cores == WINDOW + learned, "one at the start of each rollout"
        assert play.group.rollouts.outbox.unacked == WINDOW
        assert play.steps == (WINDOW + learned) * T + 1, "RESET, and the steps of so many rollouts"
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
def test_an_unusable_answer_costs_a_session_and_nothing_of_it_goes_on(plane: Plane, spoil: Spoil, reason: str) -> None:
    play = play_until_wait(Wait.BROKER if plane is STEPS else Wait.ENV)
    before = spoil_one(play, spoil, plane)
    play.goes_on()
    assert [error.reason for error in play.refused] == [reason]
    assert play.server(plane).hellos == before + 1
    assert not play.group.planes[plane].stream.trouble
    assert all(np.isfinite(rows["reward"]).all() for _, _, rows in play.used)


@pytest.mark.parametrize("kind", [None, Kind.STEP], ids=["every answer", "every step"])
def test_a_server_that_sends_only_bad_answers_gets_hello_less_and_less_often(kind: Kind | None) -> None:
    play = play_until_wait(Wait.BROKER)
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

    play = play_until_wait(Wait.BROKER)
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


ME = 7
ROWS = [np.zeros(2, np.dtype([("x", "<f4")])) for _ in range(3)]


def welcome(seq: int = 0, **more: float) -> Header:
    return Header(Kind.WELCOME, ME, 0, 1, seq, ({"window": 3, **more},))


def ack(seq: int, epoch: int = 1) -> Header:
    return Header(Kind.ACK, ME, 0, epoch, seq, (seq, 3))


def under_way(count: int) -> Outbox:
    """An outbox with `count` rollouts sent and not acknowledged."""
    outbox = Outbox(Stream(ME, 0, {}, "learner"))
    assert not outbox.room, "nothing may be pushed before WELCOME"
    assert outbox.due(0.0)[0].kind is Kind.HELLO
    assert outbox.accept(welcome(), 0.0)[0] is Reply.WELCOME
    for rows in ROWS[:count]:
        outbox.push(rows, [], 0.0)
    assert send_all(outbox) == list(range(1, count + 1))
    assert outbox.room == (count < 3)
    return outbox


def send_all(outbox: Outbox, now: float = 0.0) -> list[int]:
    seqs = []
    while (work := outbox.due(now)) and work[0].kind is Kind.ROLLOUT:
        seqs.append(work[0].seq)
        outbox.mark_sent()
    return seqs


def test_an_ack_covers_everything_up_to_its_number_if_it_is_of_this_learner() -> None:
    outbox = under_way(3)
    assert outbox.accept(ack(2, epoch=5), 0.0) == (Reply.STALE, [])
    _, free = outbox.accept(ack(2), 1.0)
    assert [id(rows) for rows in free] == [id(rows) for rows in ROWS[:2]]
    assert (outbox.unacked, outbox.room) == (1, True)


def test_a_new_connection_to_the_same_learner_is_asked_at_once_what_has_come() -> None:
    here = Header(Kind.HERE, ME, 0, 1)
    outbox = under_way(0)
    assert outbox.accept(here, 0.5)[0] is Reply.STALE
    assert outbox.due(0.5) is None, "nothing is under way"
    outbox = under_way(3)
    outbox.accept(ack(1), 0.5)
    assert outbox.accept(here, 1.0)[0] is Reply.STALE
    hello = outbox.due(1.0)[0]
    assert (hello.kind, hello.body[0]["first"]) == (Kind.HELLO, 2), "those before it are acknowledged and gone"
    outbox.accept(welcome(seq=1, received=2, progress=0.25), 1.1)
    assert outbox.progress == 0.25, "that of exploration and of schedules of environments"
    assert send_all(outbox, 1.1) == [3]
    assert outbox.unacked == 2


def test_more_episodes_than_a_header_holds_travel_with_the_next_rollouts_up_to_a_bound() -> None:
    outbox = under_way(0)
    episodes = [[float(number), 1] for number in range(2 * MAX_EPISODES + 5)]
    for rows, ended in zip(ROWS, (episodes, [], []), strict=True):
        outbox.push(rows, ended, 0.0)
    travelled = []
    while (work := outbox.due(0.0)) and work[0].kind is Kind.ROLLOUT:
        travelled.append(work[0].body[1])
        outbox.mark_sent()
    assert [len(entries) for entries in travelled] == [MAX_EPISODES, MAX_EPISODES, 5]
    assert [entry for entries in travelled for entry in entries] == episodes
    assert outbox.episodes_dropped == 0
    outbox = under_way(0)
    outbox.push(ROWS[0], [[float(number), 1] for number in range(MAX_WAITING_EPISODES + 7)], 0.0)
    assert outbox.episodes_dropped == 7
    assert outbox.due(0.0)[0].body[1][0] == [7.0, 1], "the oldest are given up"


@pytest.mark.parametrize("count", [0, 1])
def test_silence_causes_a_new_hello_whether_or_not_rollouts_are_in_flight(count: int) -> None:
    outbox = under_way(count)
    if count:
        outbox.accept(ack(0), TIMEOUTS.no_progress - 1)  # which is no progress
    assert outbox.due(TIMEOUTS.no_progress) is None
    assert outbox.due(TIMEOUTS.no_progress + 0.1)[0].kind is Kind.HELLO
    outbox.accept(welcome(), TIMEOUTS.no_progress + 0.2)
    assert send_all(outbox, TIMEOUTS.no_progress + 0.2) == [1][:count]
    assert outbox.due(2 * TIMEOUTS.no_progress) is None
