"""One env group of an actor: its three conversations and the order in which they go on. No sockets, no clock.

    connect ──► env ──► broker ──► env ──► ... ──► (T + 1 observations) ──► credit ──► broker ──► env

A group waits for exactly one thing at a time. An actor runs several groups in turn, so that one steps while another
is inferred. What a restart of a peer costs: of the env-server, the episodes and the unroll in progress; of the
broker, the unroll in progress, which begins anew with empty memory on both sides; of the learner, nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from zerobeast.common.config.tree import RunConfig
from zerobeast.common.errors import ConfigError, RemoteProtocolError
from zerobeast.common.health.hops import Hops
from zerobeast.common.runtime.seeds import MAX_ENV_SEED, continued
from zerobeast.common.transport import Incoming
from zerobeast.common.wire.checks import Episodes, episodes_of, flaw, illegal
from zerobeast.common.wire.messages import Frames, Header, Kind, Plane
from zerobeast.common.wire.records import act_record, action_record, step_record
from zerobeast.common.wire.specs import EnvSpec, PolicySpec
from zerobeast.common.wire.stream import Reply, Stream
from zerobeast.services.actor.outbox import Outbox
from zerobeast.services.actor.rollout import RolloutBuilder
from zerobeast.services.actor.waits import Wait, Waits

D = TypeVar("D")
Refuse = Callable[[RemoteProtocolError], None]


class EnvGroup:
    """N environments that are stepped and inferred together.

    Args:
      config: of the run.
      sender: id of this actor.
      slot: which of its groups this is.
      seed: of its first environment.
      now: seconds.
      hops: of the actor.
    """

    def __init__(self, config: RunConfig, sender: int, slot: int, seed: int, now: float, hops: Hops) -> None:
        self.slot = slot
        self.num_envs = config.actor.envs_per_group
        self.unroll_length = config.learner.unroll_length
        self._collect_ahead = config.actor.collect_ahead
        env_terms = {"env": config.env.model_dump(), "num_envs": self.num_envs, "seed": seed}
        self.steps = Stream(sender, slot, env_terms, f"env-server at {config.envserver.endpoint}")
        self.inference = Stream(sender, slot, {}, f"broker at {config.broker.endpoint}")
        self.outbox = Outbox(Stream(sender, slot, {}, f"learner at {config.learner.endpoint}"))
        self.env: EnvSpec | None = None
        self.policy: PolicySpec | None = None
        self.waits = Waits(now, hops)
        self.agent_steps = 0
        self.cut = {"envserver": 0, "broker": 0}  #: rollouts in progress that a restart of this peer has cost
        self.version = -1  #: of the weights that chose the newest actions
        self.version_drops = 0  #: times that an older one followed a newer one
        self._needs_reset = True  # the env session is new
        self._resetting = False
        self._forgotten = False  # the broker session is new: it has no memory of these environments
        self._seed = seed
        self._episodes: list[list[float]] = []

    def due(self, plane: Plane, now: float) -> tuple[Header, Frames] | None:
        """What to send on a plane now."""
        if not self._greets(plane):
            return None
        return self.outbox.due(now) if plane is Plane.ROLLOUTS else self.stream(plane).due(now)

    def mark_sent(self, plane: Plane, now: float) -> None:
        """Say that what `due` handed out has left."""
        if plane is Plane.ROLLOUTS:
            self.outbox.mark_sent()
        else:
            (self.steps if plane is Plane.STEPS else self.inference).sent(now)

    def deadline(self) -> float:
        """When `due` has something to repeat."""
        streams = [self.steps]
        streams += [self.inference] if self.env else []
        streams += [self.outbox.stream] if self.policy and not self.outbox.stream.open else []
        return min(stream.deadline() for stream in streams)

    def take(self, plane: Plane, message: Incoming, refuse: Refuse, now: float) -> None:
        """Act on a message. An answer that cannot be used ends the session that it is of.

        Args:
          plane: that it came on.
          message: for this group.
          refuse: counts what cannot be used.
          now: the time.

        Raises:
          ConfigError: a peer refuses for good, or offers something impossible or else than before.
        """
        if not self._greets(plane):
            return  # nothing was asked there yet
        try:
            if plane is Plane.STEPS:
                self._take_steps(message, refuse, now)
            elif plane is Plane.INFERENCE:
                self._take_inference(message, now)
            else:
                self._take_rollouts(message.header, now)
        except RemoteProtocolError as error:
            refuse(error)
            stream = self.stream(plane)
            if stream.expects(message.header):
                stream.reject(str(error), now)
                self._lost(plane, now)

    def stream(self, plane: Plane) -> Stream:
        """The conversation of a plane."""
        return {Plane.STEPS: self.steps, Plane.INFERENCE: self.inference, Plane.ROLLOUTS: self.outbox.stream}[plane]

    def abandon(self, plane: Plane, now: float) -> None:
        """Give up the session with a server, because another one will be greeted."""
        self.stream(plane).give_up(now)
        self._lost(plane, now)

    def _greets(self, plane: Plane) -> bool:
        """Whether it is known what to say HELLO with: a broker is told the environment, the learner the policy too."""
        return plane is Plane.STEPS or (self.env if plane is Plane.INFERENCE else self.policy) is not None

    def _take_steps(self, message: Incoming, refuse: Refuse, now: float) -> None:
        header = message.header
        if self.steps.expects(header):
            self._receive_rows(message)
        reply = self.steps.accept(header, now)
        if reply is Reply.ANSWER:
            self._observed(_episodes_of(header.body[0], refuse), now)
        if reply in (Reply.LOST, Reply.WELCOME):
            self._lost(Plane.STEPS, now)
        if reply is Reply.WELCOME:
            self._env_offered(_offered(self.steps, "env", EnvSpec.from_wire))
            self._resume(now)

    def _take_inference(self, message: Incoming, now: float) -> None:
        header = message.header
        if self.inference.expects(header):
            self._receive_act(message)
        reply = self.inference.accept(header, now)
        if reply is Reply.ANSWER:
            self._acted(header.body[0], now)
        if reply in (Reply.LOST, Reply.WELCOME):
            self._lost(Plane.INFERENCE, now)
        if reply is Reply.WELCOME:
            self._policy_offered(_offered(self.inference, "policy", PolicySpec.from_wire))
            self._resume(now)

    def _take_rollouts(self, header: Header, now: float) -> None:
        reply, free = self.outbox.accept(header, now)
        for rows in free:
            self._builder.recycle(rows)
        if self.waits.current is Wait.CREDIT and self.outbox.room:
            self._advance(now)
        elif reply is Reply.WELCOME:
            self._resume(now)

    def _lost(self, plane: Plane, now: float) -> None:
        """Whatever server answers next on this plane knows nothing of this group."""
        if plane is Plane.STEPS:
            self._needs_reset = True
            # the next environments shall not repeat the episodes that these began with
            self.steps.hello_terms["seed"] = continued(self._seed, self.agent_steps) % (MAX_ENV_SEED + 1)
            self._interrupt(Wait.ENV, now)
        elif plane is Plane.INFERENCE:
            self._forgotten = True
            self._interrupt(Wait.BROKER, now)

    def _interrupt(self, asked: Wait, now: float) -> None:
        """A server has forgotten this group. Only a group that waits for its answer has to stop for that now."""
        if self.waits.current is asked:
            self.waits.enter(Wait.CONNECT, now)

    def _env_offered(self, env: EnvSpec) -> None:
        if self.env is not None and env != self.env:
            raise ConfigError(f"{self.steps.server} now offers {env}, before it was {self.env}")
        if self.env is None:
            self.env = env
            self.inference.hello_terms.update(env=env.to_wire(), num_envs=self.num_envs)
            self._rows = np.zeros(self.num_envs, step_record(env).dtype)
            self._action_rows = np.zeros(self.num_envs, action_record(env.action).dtype)

    def _policy_offered(self, policy: PolicySpec) -> None:
        if self.policy is not None and policy != self.policy:
            raise ConfigError(f"{self.inference.server} now offers {policy}, before it was {self.policy}")
        if self.policy is None:
            assert self.env is not None, "the broker is greeted with the env spec"
            self.policy = policy
            self._act_rows = np.zeros(self.num_envs, act_record(self.env, policy).dtype)
            self._core = np.zeros((self.num_envs, policy.core_size), np.float32)
            self._builder = RolloutBuilder(self.env, policy, self.unroll_length, self.num_envs)
            self.outbox.stream.hello_terms.update(
                env=self.env.to_wire(),
                policy=policy.to_wire(),
                unroll_length=self.unroll_length,
                num_envs=self.num_envs,
            )

    def _resume(self, now: float) -> None:
        """Go on once all three peers are there."""
        everyone = self.steps.open and self.inference.open and self.outbox.stream.open
        if not everyone or self.waits.current is not Wait.CONNECT:
            return
        if not self._needs_reset:
            self._ask(now)
            return
        self._needs_reset, self._resetting = False, True
        self.steps.request(Kind.RESET, (), (), now)
        self.waits.enter(Wait.ENV, now)

    def _observed(self, episodes: Episodes, now: float) -> None:
        self._episodes += map(list, episodes)
        if self._resetting:
            self._resetting = False
            self._restart("envserver")
        else:
            self._builder.observe(self._rows)
            self.agent_steps += self.num_envs
        self._advance(now)

    def _advance(self, now: float) -> None:
        """Go on from the newest observation: push a complete rollout if the window admits it, then infer."""
        if self._builder.complete:
            if not self.outbox.room:
                self.waits.enter(Wait.CREDIT, now)
                return
            self.outbox.push(self._builder.take(), self._episodes, now)
            self._episodes = []
            if not (self._collect_ahead or self.outbox.room):
                self.waits.enter(Wait.CREDIT, now)
                return
        self._ask(now)

    def _ask(self, now: float) -> None:
        if self._needs_reset or not self.inference.open:
            self.waits.enter(Wait.CONNECT, now)
            self._resume(now)
            return
        if self._forgotten:
            self._begin_anew()
        self.inference.request(Kind.INFER, (self._builder.at_start,), (self._rows,), now)
        self.waits.enter(Wait.BROKER, now)

    def _begin_anew(self) -> None:
        """Both sides forget what came before this observation: the broker has to, so the rollout does."""
        self._forgotten = False
        if not (self._builder.at_start and self._rows["first"].all()):
            self._rows["first"] = True
            self._restart("broker")

    def _restart(self, peer: str) -> None:
        """Begin a rollout at the newest observation. One in progress that holds steps is lost."""
        self.cut[peer] += 0 if self._builder.at_start else self.num_envs
        self._builder.restart(self._rows)

    def _receive_rows(self, message: Incoming) -> None:
        if not message.into(self._rows):
            size, count = self._rows.dtype.itemsize, self.num_envs
            raise RemoteProtocolError(f"OBS: expected one frame of {count} step rows of {size} bytes", "payload")
        if sentence := flaw(self._rows):
            raise RemoteProtocolError(f"OBS: {sentence}", "values")

    def _receive_act(self, message: Incoming) -> None:
        with_core = self._builder.at_start and self._core.size > 0
        if not message.into(self._act_rows, last=not with_core) or (with_core and not message.into(self._core)):
            raise RemoteProtocolError(f"ACT: expected {self._act_rows.nbytes} bytes of act rows", "payload")
        assert self.env is not None, "the broker is greeted with the env spec"
        if sentence := illegal(self._act_rows["action"], self.env.action):
            raise RemoteProtocolError(f"ACT: action {sentence}", "values")
        if sentence := flaw(self._act_rows):
            raise RemoteProtocolError(f"ACT: {sentence}", "values")
        if with_core and not np.isfinite(self._core).all():
            raise RemoteProtocolError("ACT: a recurrent state is not finite", "values")

    def _acted(self, policy_version: int, now: float) -> None:
        self._action_rows["action"] = self._builder.act(self._act_rows, policy_version, self._core)
        self.version_drops += policy_version < self.version
        self.version = policy_version
        if self._needs_reset or not self.steps.open:
            self.waits.enter(Wait.CONNECT, now)
            self._resume(now)
            return
        self.steps.request(Kind.STEP, (), (self._action_rows,), now)
        self.waits.enter(Wait.ENV, now)


def _offered(stream: Stream, name: str, read: Callable[[Any], D]) -> D:
    """An entry of the WELCOME. Nothing can come of a server that describes what cannot be."""
    try:
        return read(stream.terms.get(name))
    except RemoteProtocolError as error:
        raise ConfigError(f"{stream.server} offers an impossible {name!r}: {error}") from error


def _episodes_of(entries: list[Any], refuse: Refuse) -> Episodes:
    """The episodes of OBS that are well-formed; the others are no fault of the rows that they come with."""
    found = episodes_of(entries)
    if wrong := len(entries) - len(found):
        refuse(RemoteProtocolError(f"OBS: {wrong} of {len(entries)} episodes are not [return, length]", "episodes"))
    return found
