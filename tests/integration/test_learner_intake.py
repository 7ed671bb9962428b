"""The learner and its actors: who may send, what is acknowledged, what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import ConfigError
from common.messages import Header, Kind, Plane, Reason
from common.session import Stream
from common.specs import ActionSpec, EnvSpec
from common.transport import ClientPort, Context
from services.learner.service import Learner
from services.learner.update import Trainer
from tests.helpers import wait_until
from tests.learner_fakes import POLICY, B, FakeActor, T, drive, greet, opened, rollout_rows, run_config

pytestmark = pytest.mark.integration

TWO = ActionSpec.discrete(2)
BOX = ActionSpec("box", (1,), (), (0.0,), (1.0,))


def test_a_message_is_acknowledged_when_its_last_row_was_used_and_not_before(
    endpoint: str, tmp_path: Path, actor_of: Callable[..., FakeActor]
) -> None:
    config = run_config(tmp_path, endpoint=endpoint)
    with opened(config) as learner:
        actor = actor_of(config)
        greet(learner, actor)
        assert learner.trainer is not None
        assert learner.intake is not None
        queue = learner.intake.queue
        assert queue is not None
        actor.push(1, rollout_rows(3, 1))
        drive(learner, [actor], lambda: queue.rows == 3)
        actor.push(2, rollout_rows(3, 2))
        drive(learner, [actor], lambda: actor.acked)
        assert actor.acked == [1], "message 2 has two rows left"
        assert learner.trainer.counters.updates == 1
        actor.push(3, rollout_rows(2, 3))
        drive(learner, [actor], lambda: len(actor.acked) == 3)
        assert actor.acked == [1, 2, 3]
        ack = actor.replies[-1]
        assert (ack.seq, ack.body) == (3, (3, config.learner.window))


def test_a_repeated_message_is_trained_once_and_answered_again(
    endpoint: str, tmp_path: Path, actor_of: Callable[..., FakeActor]
) -> None:
    config = run_config(tmp_path, endpoint=endpoint)
    with opened(config) as learner:
        actor = actor_of(config)
        greet(learner, actor)
        for _ in range(5):
            actor.push(1, rollout_rows(2, 1))
        actor.push(2, rollout_rows(2, 2))
        drive(learner, [actor], lambda: 2 in actor.acked)
        actor.push(1, rollout_rows(2, 1))
        actor.push(2, rollout_rows(2, 2))
        drive(learner, [actor], lambda: len(actor.acked) == 4)
        assert learner.report()["updates"] == 1
        assert learner.report()["queue_rows"] == 0
        assert set(actor.acked[2:]) == {2}, "an answer says what is used up by now"


def test_welcome_says_the_window_the_policy_and_what_is_used_up(
    tmp_path: Path, actor_of: Callable[..., FakeActor]
) -> None:
    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l", window=3)
    with opened(config) as learner:
        actor = actor_of(config, policy=None)
        greet(learner, actor)
        assert actor.stream.terms == {"window": 3, "policy": POLICY.to_wire(), "received": 0}
        assert actor.stream.seq == 0
        actor.push(7, rollout_rows(4))
        actor.push(8, rollout_rows(1))
        drive(learner, [actor], lambda: actor.acked)
        actor.stream.greet_again(learner.clock())
        greet(learner, actor)
        assert actor.stream.seq == 7
        assert actor.stream.terms["received"] == 8, "need not be sent again"


def test_a_hello_behind_rollouts_that_find_no_room_is_answered(
    endpoint: str, tmp_path: Path, actor_of: Callable[..., FakeActor]
) -> None:
    config = run_config(tmp_path, endpoint=endpoint)
    with opened(config) as learner:
        actors = [actor_of(config) for _ in range(5)]
        greet(learner, *actors)
        assert learner.intake is not None
        intake, queue = learner.intake, learner.intake.queue
        assert queue is not None
        for number, actor in enumerate(actors):
            actor.push(1, rollout_rows(4, number))
            actor.stream.greet_again(learner.clock())

        def turn() -> bool:
            intake.receive(learner.clock())
            for actor in actors:
                actor.turn(learner.clock())
            return all(actor.stream.open for actor in actors)

        wait_until(turn)
        assert queue.rows == queue.capacity
        assert [actor.stream.terms["received"] for actor in actors] == [1] * 5
        for actor in actors:
            actor.push(1, rollout_rows(4))  # again, though it need not
        drive(learner, actors, lambda: all(1 in actor.acked for actor in actors))
        assert learner.report()["agent_steps"] == 5 * 4 * 5


def test_no_more_is_received_than_credit_was_given_for(tmp_path: Path, actor_of: Callable[..., FakeActor]) -> None:
    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l")
    with opened(config) as learner:
        actors = [actor_of(config) for _ in range(3)]
        greet(learner, *actors)
        assert learner.intake is not None
        intake, queue = learner.intake, learner.intake.queue
        assert queue is not None
        for actor in actors:
            for seq in range(1, 7):
                actor.push(seq, rollout_rows(4, seq))
        fullest = 0
        for _ in range(200):
            intake.receive(learner.clock())
            fullest = max(fullest, queue.rows)
        assert fullest == queue.capacity
        assert len(intake._landing or ()) == 4, "one for each actor, and one that shows that this is all"
        learner.config = config.model_copy(update={"total_steps": 10**6})
        drive(learner, actors, lambda: learner.stopping.is_set() or all(len(actor.acked) == 6 for actor in actors))
        assert learner.report()["agent_steps"] == 160


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [
        ({"unroll_length": 6}, "unroll_length is 6, this run has 5"),
        ({"env": EnvSpec("Other-v0", (4,), "<f4", ActionSpec.discrete(2)).to_wire()}, "env.env_id is Other-v0"),
        ({"policy": {"n_logits": 3, "core_size": 0}}, "policy.n_logits is 3, this run has 2"),
        ({"num_envs": 5}, "num_envs is 5, expected at most 4"),
        ({"num_envs": "x"}, "num_envs is x, expected a positive number"),
    ],
)
@pytest.mark.parametrize("first", [True, False], ids=["as the first", "as the second"])
def test_terms_that_do_not_fit_are_refused_with_a_sentence(
    tmp_path: Path, actor_of: Callable[..., FakeActor], terms: dict[str, Any], sentence: str, first: bool
) -> None:
    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l")
    with opened(config) as learner:
        if not first:
            greet(learner, actor_of(config))
        wrong = actor_of(config, **terms)
        with pytest.raises(ConfigError, match="learner refuses: .*" + sentence):
            greet(learner, wrong)
        assert wrong.replies[-1].body[0] == Reason.TERMS
        greet(learner, actor_of(config))
        assert learner.report()["peers"] == (1 if first else 2), "the run is open to those who fit"


def test_an_actor_with_actions_of_another_kind_than_the_run_has_is_refused(
    tmp_path: Path, actor_of: Callable[..., FakeActor]
) -> None:
    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l")
    env = EnvSpec("Test-v0", (4,), "<f4", ActionSpec("box", (1,), (), (0.0,), (1.0,)), frame_skip=4)
    with opened(config) as learner:
        greet(learner, actor_of(config))
        with pytest.raises(ConfigError, match=r"env\.action\.kind is box, this run has discrete"):
            greet(learner, actor_of(config, env=env.to_wire()))


def test_malformed_rollouts_are_counted_and_the_run_goes_on(
    endpoint: str, tmp_path: Path, actor_of: Callable[..., FakeActor]
) -> None:
    config = run_config(tmp_path, endpoint=endpoint)
    with opened(config) as learner:
        actor = actor_of(config)
        greet(learner, actor)
        poisoned = rollout_rows(2)
        poisoned["reward"][0, 1] = np.nan
        impossible = rollout_rows(2)
        impossible["last_action"][0, 1] = 2
        actor.push(1, poisoned)
        actor.push(2, impossible)
        actor.push(3, rollout_rows(2), n=3)
        actor.push(4, rollout_rows(2), n=1)
        actor.push(5, rollout_rows(2), n=0)
        actor.push(6, rollout_rows(2), n=10**9)
        actor.push(7, rollout_rows(2), [["x", 1]])
        actor.port.send(Header(Kind.STEP, actor.port.sender, 0, actor.stream.epoch, 8))
        actor.port._requests.send_multipart([b"garbage", b"more"])
        actor.push(8, rollout_rows(4))
        drive(learner, [actor], lambda: 8 in actor.acked)
        reasons = learner.report()["refused_by_reason"]
        assert reasons == {"values": 2, "payload": 4, "episodes": 1, "kind": 1, "header": 1}
        assert learner.report()["refused"] == 9
        assert learner.report()["agent_steps"] == B * T
        assert actor.acked == [1, 2, 3, 4, 5, 6, 7, 8], "a sender of bad rollouts is not left waiting"


def test_a_flood_of_bad_rollouts_does_not_grow_the_queue(tmp_path: Path, actor_of: Callable[..., FakeActor]) -> None:
    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l")
    with opened(config) as learner:
        actor = actor_of(config)
        greet(learner, actor)
        actor.push(1, rollout_rows(1))
        for seq in range(2, 502):
            wait_until(lambda seq=seq: send_or_turn(learner, actor, seq))
        drive(learner, [actor], lambda: learner.report()["refused"] == 500)
        assert learner.intake is not None
        assert learner.intake.queue is not None
        assert len(learner.intake.queue._messages) <= 64


def send_or_turn(learner: Learner, actor: FakeActor, seq: int) -> bool:
    header = Header(Kind.ROLLOUT, actor.port.sender, 0, actor.stream.epoch, seq, (1, []))
    if actor.port.send(header, b"short"):
        return True
    learner.poll(0.001)
    return False


def test_a_rollout_of_another_start_of_the_learner_is_sent_back_to_hello(
    endpoint: str, tmp_path: Path, actor_of: Callable[..., FakeActor]
) -> None:
    config = run_config(tmp_path, endpoint=endpoint)
    with opened(config) as learner:
        actor = actor_of(config)
        greet(learner, actor)
        actor.stream.epoch += 2
        actor.push(1, rollout_rows(4))
        drive(learner, [actor], lambda: actor.replies[-1].kind is Kind.ERROR)
        assert actor.replies[-1].body[0] == Reason.UNKNOWN_SESSION
        assert learner.report()["agent_steps"] == 0


def test_an_actor_that_leaves_is_forgotten_when_its_place_is_needed(
    tmp_path: Path, context: Context, actor_of: Callable[..., FakeActor]
) -> None:
    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l")
    with opened(config) as learner:
        actor = FakeActor(context, config.learner.endpoint)
        greet(learner, actor)
        assert learner.report()["peers"] == 1
        actor.close()
        drive(learner, [], lambda: learner.report()["peers"] == 0)
        assert learner.intake is not None
        assert len(learner.intake._sessions) == 1, "its connection may only be broken"
        learner.intake._sessions.limit = 1
        next_one = actor_of(config)
        greet(learner, next_one)
        assert learner.intake._sessions.senders == {next_one.port.sender}
        late = actor_of(config)
        drive(learner, [late], lambda: late.stream.busy)
        assert learner.intake._sessions.senders == {next_one.port.sender}, "who is here is never forgotten"


def test_rollouts_are_not_trained_twice_when_a_connection_breaks(
    endpoint: str, tmp_path: Path, actor_of: Callable[..., FakeActor]
) -> None:
    config = run_config(tmp_path, endpoint=endpoint)
    with opened(config) as learner:
        actor = actor_of(config)
        greet(learner, actor)
        actor.push(1, rollout_rows(2, 1))
        assert learner.intake is not None
        queue = learner.intake.queue
        assert queue is not None
        drive(learner, [actor], lambda: queue.rows == 2)
        actor.port.reopen()
        actor.stream.greet_again(learner.clock())
        greet(learner, actor)
        actor.push(1, rollout_rows(2, 1))
        actor.push(2, rollout_rows(1, 2))
        drive(learner, [actor], lambda: queue.rows == 3)
        assert learner.report()["agent_steps"] == 0


def test_a_rollout_behind_a_missing_one_is_not_taken_before_it(
    endpoint: str, tmp_path: Path, actor_of: Callable[..., FakeActor]
) -> None:
    config = run_config(tmp_path, endpoint=endpoint, window=4)
    with opened(config) as learner:
        actor = actor_of(config)
        greet(learner, actor)
        actor.push(3, rollout_rows(2, 3))
        actor.push(5, rollout_rows(2, 5))
        drive(learner, [actor], lambda: actor.replies[-1].kind is Kind.ERROR)
        assert actor.replies[-1].seq == 5
        assert actor.replies[-1].body[0] == Reason.UNKNOWN_SESSION
        assert learner.report()["queue_rows"] == 2
        actor.stream.greet_again(learner.clock())
        greet(learner, actor)
        for seq in (3, 4, 5):
            actor.push(seq, rollout_rows(2, seq))
        assert learner.intake is not None
        queue = learner.intake.queue
        assert queue is not None
        drive(learner, [actor], lambda: 4 in actor.acked and queue.rows == 2)
        assert learner.report()["updates"] == 1
        assert learner.report()["refused_by_reason"] == {"session": 1}


def test_what_a_dead_actor_left_in_the_socket_does_not_bring_it_back(tmp_path: Path, context: Context) -> None:
    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l")
    with opened(config) as learner:
        actor = FakeActor(context, config.learner.endpoint)
        greet(learner, actor)
        assert learner.intake is not None
        intake, queue = learner.intake, learner.intake.queue
        assert queue is not None
        actor.push(1, rollout_rows(1, 1))
        wait_until(lambda: intake.port.pollable[0].poll(1))
        port = ClientPort(context, Plane.ROLLOUTS, config.learner.endpoint, actor.port.sender)
        actor.close()
        port.close()
        wait_until(lambda: intake.port.pollable[1].poll(1))
        drive(learner, [], lambda: queue.rows == 1)
        drive(learner, [], lambda: intake.peers == 0)
        assert list(intake._left) == [actor.port.sender]


def test_terms_that_are_arrays_are_refused_like_any_others(tmp_path: Path, actor_of: Callable[..., FakeActor]) -> None:
    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l")
    with opened(config) as learner:
        for terms in ({"policy": np.zeros(3)}, {"env": np.zeros(3)}, {"num_envs": np.zeros(3)}):
            with pytest.raises(ConfigError, match="learner refuses"):
                greet(learner, actor_of(config, **terms))


def test_memory_that_is_not_there_for_what_a_peer_describes_is_a_refusal(
    tmp_path: Path, actor_of: Callable[..., FakeActor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_much(_trainer: Trainer, _capacity: int) -> NDArray[np.void]:
        raise RuntimeError("can't allocate memory")

    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l")
    with opened(config) as learner:
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "storage", too_much)
            with pytest.raises(ConfigError, match="cannot learn from it: can't allocate memory"):
                greet(learner, actor_of(config))
        assert learner.trainer is None
        greet(learner, actor_of(config))


def test_goodbye_ends_the_session(tmp_path: Path, actor_of: Callable[..., FakeActor]) -> None:
    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l")
    with opened(config) as learner:
        actor = actor_of(config)
        greet(learner, actor)
        actor.port.send(Header(Kind.BYE, actor.port.sender))
        drive(learner, [], lambda: learner.report()["peers"] == 0)


def test_streams_of_one_actor_are_counted_apart(tmp_path: Path, actor_of: Callable[..., FakeActor]) -> None:
    config = run_config(tmp_path, endpoint=f"ipc://{tmp_path}/l")
    with opened(config) as learner:
        actor = actor_of(config)
        greet(learner, actor)
        first = actor.stream
        actor.stream = Stream(actor.port.sender, 1, dict(first.hello_terms), "learner")
        greet(learner, actor)
        actor.push(1, rollout_rows(2, 1))
        actor.stream = first
        actor.push(1, rollout_rows(2, 2))
        drive(learner, [actor], lambda: len(actor.acked) == 2)
        assert {reply.slot for reply in actor.replies if reply.kind is Kind.ACK} == {0, 1}
        assert learner.report()["peers"] == 1
