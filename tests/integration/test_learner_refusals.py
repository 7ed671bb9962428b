"""The learner and its actors: which terms and rollouts are refused, and that the run stays open to the others."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.build.learners import B, FakeActor, Opener, OpenRun, T, feed, rollout_rows
from tests.helpers import poll, wait_until
from zerobeast.common.errors import ConfigError, StoreError
from zerobeast.common.wire.messages import Header, Kind, Reason
from zerobeast.common.wire.session import YIELDS_S
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.services.learner.together import Alone
from zerobeast.services.learner.update import Trainer

BOX = EnvSpec("Test-v0", ArraySpace.box((4,)), ArraySpace.box((1,), low=(0.0,), high=(1.0,)), frame_skip=4)
MISFITS: list[tuple[dict[str, Any], str]] = [
    ({"unroll_length": 6}, "unroll_length is 6, this run has 5"),
    (
        {"env": EnvSpec("Other-v0", ArraySpace.box((4,)), ArraySpace.discrete(2)).to_wire()},
        "env.env_id is Other-v0",
    ),
    (
        {"policy": {"extras": [["q", "<f4", [2]]], "core_size": 0}},
        r"policy\.extras is \[\['q', '<f4', \[2\]\]\], this run has",
    ),
    ({"num_envs": 5}, "num_envs is 5, expected at most 4"),
    ({"num_envs": "x"}, "num_envs is x, expected a positive number"),
    ({"policy": np.zeros(3)}, ""),
    ({"env": np.zeros(3)}, ""),
    ({"num_envs": np.zeros(3)}, ""),
]


@pytest.mark.parametrize("first", [True, False], ids=["as the first", "as the second"])
def test_terms_that_do_not_fit_are_refused_with_a_sentence(open_run: Opener, first: bool) -> None:
    run = open_run()
    if not first:
        feed(run.learner, run.actor(), range(1, 2))
    another_kind = ({"env": BOX.to_wire()}, r"env\.action\.kind is box, this run has discrete")
    for terms, sentence in [*MISFITS, *([] if first else [another_kind])]:
        wrong = run.actor(**terms)
        with pytest.raises(ConfigError, match="learner refuses: .*" + sentence):
            run.greet(wrong)
        assert wrong.replies[-1].body[0] == Reason.TERMS
    run.welcomed()
    assert run.page["peers"] == (1 if first else 2), "the run is open to those who fit"


FIVE = {"env": EnvSpec("Test-v0", ArraySpace.box((5,)), ArraySpace.discrete(2), frame_skip=4).to_wire()}


@pytest.mark.parametrize("leaves", [True, False], ids=["and leaves", "and stays"])
def test_an_actor_that_sends_hello_first_and_delivers_nothing_decides_nothing(
    open_run: Opener, monkeypatch: pytest.MonkeyPatch, *, leaves: bool
) -> None:
    run = open_run()
    first, actor = run.welcomed(**FIVE), run.actor()
    if leaves:
        first.close()
        run.drive([], lambda: run.page["peers"] == 0)
    else:
        first.push(1, rollout_rows(2))  # of another size than its own description
        run.drive([first], lambda: run.page["refused_by_reason"])
        run.drive([actor], lambda: "obs.shape is [4], this run has [5]" in actor.stream.busy)
        clock = run.learner.clock
        monkeypatch.setattr(run.learner, "clock", lambda: clock() + YIELDS_S + 1)
    with pytest.raises(ConfigError, match=r"this run has \[5\]"):
        run.welcomed(unroll_length=6)  # could begin no run either
    run.greet(actor)
    assert not run.learner.training.vote(Alone()).env, "ranks would have to play the same"
    actor.push(1, rollout_rows(B))
    run.drive([actor], lambda: actor.acked)
    with pytest.raises(ConfigError, match=r"obs\.shape is \[5\], this run has \[4\]"):
        run.welcomed(**FIVE)
    assert run.page["agent_steps"] == B * T
    assert run.learner.training.vote(Alone()).env


def test_a_description_without_rollouts_is_not_saved(open_run: Opener) -> None:
    run = open_run()
    run.welcomed(**FIVE)
    run.learner.drain()
    assert not list(run.learner.config.folder.glob("*.pt"))


def test_a_disk_that_cannot_hold_the_run_ends_the_learner_and_refuses_no_actor(open_run: Opener) -> None:
    def full(*_: object) -> Trainer:
        raise StoreError("the disk is full")

    run = open_run({"make_trainer": full})
    actor = run.actor()
    with pytest.raises(StoreError, match="the disk is full"):
        run.greet(actor)
    assert Kind.ERROR not in [reply.kind for reply in actor.replies]


def test_terms_that_need_more_memory_than_there_is_are_refused(open_run: Opener) -> None:
    class TooLarge(Trainer):
        def storage(self, _capacity: int) -> NDArray[np.void]:
            raise RuntimeError("can't allocate memory")

    kinds = iter([TooLarge, Trainer])
    run = open_run({"make_trainer": lambda *args: next(kinds)(*args)})
    with pytest.raises(ConfigError, match="cannot learn from it: RuntimeError: can't allocate memory"):
        run.welcomed()
    assert run.learner.training is None
    run.welcomed()


def test_malformed_rollouts_are_counted_and_the_run_goes_on(open_run: Opener) -> None:
    run = open_run()
    actor = run.welcomed()
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
    actor.push(7, rollout_rows(2), [[1.0, 5]] * 1001)
    actor.port.send(Header(Kind.STEP, actor.port.sender, 0, actor.stream.epoch, 8))
    actor.port._requests.send_multipart([b"garbage", b"more"])
    actor.push(8, rollout_rows(4))
    run.drive([actor], lambda: 8 in actor.acked)
    reasons = run.page["refused_by_reason"]
    assert reasons == {"values": 2, "payload": 4, "episodes": 1, "kind": 1, "header": 1}
    assert run.page["refused"] == 9
    assert run.page["agent_steps"] == B * T
    assert actor.acked == [1, 2, 3, 4, 5, 6, 7, 8], "a sender of bad rollouts is not left waiting"


def test_good_rows_with_a_malformed_episode_are_learned_from(open_run: Opener) -> None:
    run = open_run()
    actor = run.welcomed()
    actor.push(1, rollout_rows(4), [[float("nan"), 3], [7.0, 5]])
    run.drive([actor], lambda: 1 in actor.acked)
    assert run.page["refused_by_reason"] == {"episodes": 1}
    assert (run.page["agent_steps"], run.page["rollouts_by_fate"]["used"]) == (B * T, 4)
    assert (run.page["episodes"], run.page["mean_return_100"]) == (1, 7.0)


def test_a_flood_of_bad_rollouts_does_not_grow_the_queue(open_run: Opener) -> None:
    run = open_run()
    actor = run.welcomed()
    actor.push(1, rollout_rows(1))
    for seq in range(2, 502):
        wait_until(lambda seq=seq: send_or_turn(run, actor, seq))
    run.drive([actor], lambda: run.page["refused"] == 500)
    assert len(run.queue) <= 64


def send_or_turn(run: OpenRun, actor: FakeActor, seq: int) -> bool:
    header = Header(Kind.ROLLOUT, actor.port.sender, 0, actor.stream.epoch, seq, (1, [], 0))
    if actor.port.send(header, b"short"):
        return True
    poll(run.learner, 0.001)
    return False


def test_a_rollout_for_another_start_of_the_learner_is_refused(open_run: Opener) -> None:
    run = open_run()
    actor = run.welcomed()
    actor.stream.epoch += 2
    actor.push(1, rollout_rows(4))
    run.drive([actor], lambda: actor.replies[-1].kind is Kind.ERROR)
    assert actor.replies[-1].body[0] == Reason.UNKNOWN_SESSION
    assert run.page["agent_steps"] == 0
