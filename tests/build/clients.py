"""The clients of this project, as the contract of a client sees them."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np

from tests.helpers import poll
from zerobeast.clients.env_client import EnvClient
from zerobeast.clients.policy_client import PolicyClient
from zerobeast.common.config.process import Instance
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import Context
from zerobeast.common.wire import ArraySpace, EnvSpec, PolicySpec, act_record, step_record
from zerobeast.common.wire.messages import Frames, Header, Kind, Plane
from zerobeast.rl.algos.policy_gradient.actor_critic import logits_and_value
from zerobeast.services.actor.service import Actor
from zerobeast.testing.script_server import Ask, Client, serve_script

ENV = EnvSpec("Fake-v0", ArraySpace.box((2,)), ArraySpace.discrete(2))
POLICY = PolicySpec(logits_and_value(2), 0)
N, T = 1, 2
OFFERS: dict[Plane, dict[str, Any]] = {
    Plane.STEPS: {"env": ENV.to_wire()},
    Plane.INFERENCE: {"policy": POLICY.to_wire()},
    Plane.ROLLOUTS: {"window": 2, "policy": POLICY.to_wire(), "unroll_length": T, "received": 0},
}


def answer(asked: Header) -> tuple[tuple[Any, ...], Frames]:
    """A good answer to any request."""
    if asked.kind is Kind.ROLLOUT:
        return (asked.seq, 2), ()
    if asked.kind is Kind.INFER:
        return (0,), (np.zeros(N, act_record(ENV, POLICY).dtype),)
    rows = np.zeros(N, step_record(ENV).dtype)
    rows["first"] = asked.kind is Kind.RESET
    return ([],), (rows,)


@contextmanager
def _env_client(endpoint: str, limit_s: float) -> Iterator[Ask]:
    context = Context()
    try:
        with EnvClient(context, endpoint, {"id": "Fake-v0"}, N, seed=0, timeout_s=limit_s) as client:
            calls = iter([client.reset])
            yield lambda: next(calls, partial(client.step, [0] * N))()
    finally:
        context.term()


@contextmanager
def _others(plane: Plane, endpoint: str, *planes: Plane) -> Iterator[dict[Plane, str]]:
    """Where each plane is served: all but one by servers that answer well."""
    places = {each: endpoint if each is plane else f"{endpoint}.{each.name}" for each in planes}
    with ExitStack() as stack:
        for each in places.keys() - {plane}:
            stack.enter_context(serve_script(Client(each, OFFERS[each], answer, _env_client), places[each]))
        yield places


@contextmanager
def _policy_client(plane: Plane, endpoint: str, limit_s: float) -> Iterator[Ask]:
    with _others(plane, endpoint, Plane.INFERENCE, Plane.ROLLOUTS) as places:
        broker, learner = places[Plane.INFERENCE], places[Plane.ROLLOUTS]
        with PolicyClient(broker, learner, ENV, timeout_s=limit_s) as client:
            begin = iter([client.start])

            def act() -> None:
                next(begin, client.act)(np.zeros(2, np.float32))

            def rollout() -> None:
                done = client.report()["rollouts"] - client.report()["rollouts_unacked"]
                while client.report()["rollouts"] - client.report()["rollouts_unacked"] <= done:
                    act()

            yield act if plane is Plane.INFERENCE else rollout


@contextmanager
def _actor(plane: Plane, endpoint: str, limit_s: float) -> Iterator[Ask]:
    with _others(plane, endpoint, Plane.STEPS, Plane.INFERENCE, Plane.ROLLOUTS) as places, ExitStack() as stack:
        roles = zip(("envserver", "broker", "learner"), places.values(), strict=True)
        settings: dict[str, Any] = {role: {"endpoint": place} for role, place in roles}
        settings["learner"]["unroll_length"] = T
        settings["actor"] = {"env_groups": 1, "envs_per_group": N, "connect_timeout_s": limit_s}
        actor = Actor(RunConfig.model_validate(settings), Instance(index=0))
        actor.open()
        stack.callback(actor.close)

        def acked() -> int:
            [[_slot, _rollouts, _pushed, found]] = actor.report()["streams"]
            return int(found)

        def rollout() -> None:
            done = acked()
            while acked() <= done:
                poll(actor, 0.005)
                actor.tick(actor.clock())

        yield rollout
        actor.drain()


def _client(plane: Plane, opened: Any, *, survives: bool = True) -> Client:
    offer = OFFERS[plane]
    misfit: dict[str, Any] | None = None if plane is Plane.ROLLOUTS else {key: {} for key in offer}
    return Client(plane, offer, answer, opened, misfit, survives)


CLIENTS = {
    "env client": _client(Plane.STEPS, _env_client, survives=False),
    "policy client of a broker": _client(Plane.INFERENCE, partial(_policy_client, Plane.INFERENCE)),
    "policy client of a learner": _client(Plane.ROLLOUTS, partial(_policy_client, Plane.ROLLOUTS)),
    **{f"actor of {plane.name}": _client(plane, partial(_actor, plane)) for plane in OFFERS},
}
