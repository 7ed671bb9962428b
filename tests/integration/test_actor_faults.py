"""An actor whose env-server is at fault: what its page and its log say, and that it goes on once the fault is over."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import pytest

from tests.helpers import poll, wait_until
from zerobeast.common.config.process import Instance
from zerobeast.common.errors import PeerLost
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import Context, Incoming, ServerPort
from zerobeast.common.wire.messages import Header, Kind, Plane
from zerobeast.common.wire.records import act_record, step_record
from zerobeast.common.wire.spaces import ArraySpace
from zerobeast.common.wire.specs import EnvSpec, PolicySpec
from zerobeast.common.wire.stream import LASTING_S, RESEND_LIMIT_S
from zerobeast.rl.algos.policy_gradient.actor_critic import logits_and_value
from zerobeast.services.actor.service import Actor
from zerobeast.services.actor.waits import TIMEOUTS

ENV = EnvSpec("Masked-v0", ArraySpace.box((4,)), ArraySpace.discrete(2), action_mask=True)
POLICY = PolicySpec(logits_and_value(2), 0)
N, EPOCH, TIMEOUT_S, TURN_S = 2, 5, 60.0, 0.02

Frames = tuple[Any, ...]
Fault = Callable[[Header], tuple[Header, Frames]]


def reply(request: Header, kind: Kind, *body: Any, epoch: int = EPOCH, seq: int | None = None) -> Header:
    return Header(kind, request.sender, request.slot, epoch, request.seq if seq is None else seq, body)


def obs(request: Header, *, reward: float = 0.0, legal: int = 1, **changes: Any) -> tuple[Header, Frames]:
    rows = np.zeros(N, step_record(ENV).dtype)
    rows["first"], rows["reward"][-1] = request.kind is Kind.RESET, reward
    rows["action_mask"], rows["action_mask"][-1] = True, legal
    return reply(request, Kind.OBS, [], **changes), (rows,)


class Scene:
    """An actor and its three servers in one thread, under a clock that stands still unless it is moved."""

    def __init__(self, context: Context, folder: str, stack: ExitStack) -> None:
        self.now, self.asked = 0.0, 0
        self.fault: Fault | None = None
        places = {Plane.STEPS: "e", Plane.INFERENCE: "b", Plane.ROLLOUTS: "l"}
        ends = {plane: f"ipc://{folder}/{name}" for plane, name in places.items()}
        self.ports = {plane: stack.enter_context(closing(ServerPort(context, plane, ends[plane]))) for plane in ends}
        roles = zip(("envserver", "broker", "learner"), ends.values(), strict=True)
        settings: dict[str, Any] = {role: {"endpoint": endpoint} for role, endpoint in roles}
        settings["learner"]["unroll_length"] = 4
        settings["actor"] = {"env_groups": 1, "envs_per_group": N, "connect_timeout_s": TIMEOUT_S}
        self.actor = Actor(RunConfig.model_validate(settings), Instance(index=0), clock=lambda: self.now)
        self.actor.open()
        stack.enter_context(closing(self.actor))

    def turn(self, seconds: float = TURN_S) -> None:
        self.now += seconds
        poll(self.actor, 0.001)
        self.actor.tick(self.now)
        for plane, port in self.ports.items():
            port.changes()
            while message := port.receive():
                for header, frames in self.answers(plane, message):
                    port.send(header, *frames)

    def answers(self, plane: Plane, message: Incoming) -> Iterator[tuple[Header, Frames]]:
        header = message.header
        self.asked += plane is Plane.STEPS
        if header.kind is Kind.BYE:
            return
        if plane is Plane.STEPS:
            if self.fault and header.kind is not Kind.HELLO:
                yield self.fault(header)
            else:
                terms = {"env": ENV.to_wire()}
                yield (reply(header, Kind.WELCOME, terms), ()) if header.kind is Kind.HELLO else obs(header)
        elif header.kind is Kind.HELLO:
            yield reply(header, Kind.WELCOME, {"policy": POLICY.to_wire(), "window": 2}), ()
        elif plane is Plane.INFERENCE:
            yield reply(header, Kind.ACT, 0), (np.zeros(N, act_record(ENV, POLICY).dtype),)
        else:
            yield reply(header, Kind.ACK, header.seq, 2), ()

    def play(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.turn()

    @property
    def page(self) -> dict[str, Any]:
        return self.actor.report()

    def trains(self) -> None:
        """Wait until rollouts flow."""
        before = self.page["rollouts_sent"]
        wait_until(lambda: self.turn() or self.page["rollouts_sent"] > before + 2)


@pytest.fixture
def scene(context: Context, tmp_path: Any) -> Iterator[Scene]:
    with ExitStack() as stack:
        found = Scene(context, str(tmp_path), stack)
        found.trains()
        yield found


def test_a_fault_that_repeats_is_on_the_page_and_once_in_the_log(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    assert scene.page["trouble"] == ""
    scene.fault, scene.asked = lambda asked: obs(asked, legal=0), 0
    with caplog.at_level(logging.WARNING):
        scene.play(TIMEOUT_S - 5)
    assert scene.asked < 60
    assert "action_mask" in scene.page["trouble"]
    assert "env-server at ipc://" in scene.page["trouble"]
    assert scene.page["setbacks"] > 3
    assert set(scene.page["refused_by_reason"]) == {"values"}
    assert sum("less often" in record.message for record in caplog.records) == 1
    assert len(caplog.records) < 5
    scene.fault = None
    scene.play(RESEND_LIMIT_S + LASTING_S + 1)
    scene.trains()
    assert scene.page["trouble"] == ""


def test_an_actor_ends_after_a_minute_of_answers_that_cannot_be_used(scene: Scene) -> None:
    scene.fault = lambda asked: obs(asked, reward=np.nan if scene.now % 10 < 5 else 0.0)
    scene.play(TIMEOUT_S + 30)
    scene.fault = lambda asked: obs(asked, reward=np.nan)
    with pytest.raises(PeerLost, match="reward of row 1"):
        scene.play(TIMEOUT_S + 15)


def test_answers_to_no_request_are_not_reported_as_silence(scene: Scene) -> None:
    scene.play(1.0)
    scene.fault = lambda asked: obs(asked, epoch=EPOCH + 1)
    scene.play(TIMEOUTS.silent + 1)
    assert "no usable answer" in scene.page["trouble"]
    with pytest.raises(PeerLost, match="env-server at ipc://"):
        scene.play(TIMEOUT_S)
