"""One env group of an actor: which of its three planes goes on when. No sockets, no clock.

An actor runs several groups in turn, so that one steps while another is inferred. What a restart of a peer costs: of
the env-server, the episodes and the rollout in progress; of the broker, the rollout in progress, which begins anew with
empty memory on both sides; of the learner, nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from zerobeast.common.config.tree import RunConfig
from zerobeast.common.transport import Incoming
from zerobeast.common.wire.messages import Plane
from zerobeast.common.wire.stream import Reply, Stream
from zerobeast.services.actor.planes import GroupPlane, InferencePlane, Refuse, RolloutsPlane, StepsPlane
from zerobeast.services.actor.timeouts import TIMEOUTS, Timeouts
from zerobeast.services.actor.waits import Wait, Waits


class EnvGroup:
    """N environments that are stepped and inferred together.

    A group waits for one thing at a time, and that is its state. What is not in this table leaves it as it is:

        state    event                if                     action                  next
        -------  -------------------  ---------------------  ----------------------  -------
        CONNECT  all sessions open    env session is new     RESET                   ENV
        CONNECT  all sessions open    env session is known   begin a rollout, INFER  BROKER
        ENV      OBS                  env session is new     begin a rollout         go on
        ENV      OBS                  env session is known   record obs              go on
        ENV      env session lost                                                    CONNECT
        BROKER   ACT                  env session is new     record act              CONNECT
        BROKER   ACT                  env session is known   record act, STEP        ENV
        BROKER   broker session lost                                                 CONNECT
        CREDIT   ACK or WELCOME       room in the window                             go on

        go on    rollout complete     no room                                        CREDIT
        go on    rollout complete     room for one, in step  push                    CREDIT
        go on    rollout complete     room                   push                    go on
        go on    rollout incomplete   no broker session                              CONNECT
        go on    rollout incomplete   env session is new                             CONNECT
        go on    rollout incomplete   both sessions known    INFER                   BROKER

    A session is new until RESET is answered, or INFER asked, in it. INFER in a new one begins a rollout, since the
    broker remembers nothing of one in progress. "In step" is `actor.collect_ahead false`.

    Args:
      config: of the run, with the environment of this group alone.
      sender: id of this actor.
      slot: which of its groups this is.
      seed: of its first environment.
      waits: counts what it waits for.
      timeouts: of the actor.
    """

    def __init__(
        self, config: RunConfig, sender: int, slot: int, seed: int, waits: Waits, timeouts: Timeouts = TIMEOUTS
    ) -> None:
        self.slot = slot
        self.num_envs = config.actor.envs_per_group
        self._unroll_length = config.learner.unroll_length
        self._collect_ahead = config.actor.collect_ahead
        env_terms = {"env": config.env.model_dump(), "num_envs": self.num_envs, "seed": seed}
        env_server = Stream(sender, slot, env_terms, f"env-server at {config.envserver.endpoint}")
        self.steps = StepsPlane(env_server, self.num_envs, seed)
        self.inference = InferencePlane(Stream(sender, slot, {}, f"broker at {config.broker.endpoint}"))
        learner = Stream(sender, slot, {}, f"learner at {config.learner.endpoint}")
        self.rollouts = RolloutsPlane(learner, timeouts.no_progress)
        self.planes: dict[Plane, GroupPlane] = {
            Plane.STEPS: self.steps,
            Plane.INFERENCE: self.inference,
            Plane.ROLLOUTS: self.rollouts,
        }
        self.waits = waits

    def deadline(self) -> float:
        return min(self.steps.deadline(), self.inference.deadline(), self.rollouts.deadline())

    def take(self, plane: Plane, message: Incoming, refuse: Refuse, now: float) -> None:
        reply = self.planes[plane].take(message, refuse, now)
        if reply is Reply.WELCOME:
            self._introduce()
        self._react(plane, reply, now)

    def abandon(self, plane: Plane, now: float) -> None:
        """Give up the session with a server, because another one will be greeted."""
        self.planes[plane].give_up(now)
        self._react(plane, Reply.LOST, now)

    def _react(self, plane: Plane, reply: Reply, now: float) -> None:
        if (transition := TRANSITIONS.get((self.waits.current, plane, reply))) is not None:
            transition(self, now)

    def _introduce(self) -> None:
        """Each WELCOME holds what the HELLO on the next plane needs."""
        env, policy = self.steps.env, self.inference.policy
        if env and not self.inference.greets:
            self.inference.greet_with(env, self.num_envs)
        if env and policy and not self.rollouts.greets:
            self.rollouts.greet_with(env, policy, self._unroll_length, self.num_envs)

    def _connect(self, now: float) -> None:
        self.waits.enter(Wait.CONNECT, now)
        self._connected(now)

    def _connected(self, now: float) -> None:
        if not all(end.stream.open for end in self.planes.values()):
            return
        if self.steps.new:
            self.steps.reset(now)
            self.waits.enter(Wait.ENV, now)
        else:
            self._infer(now)

    def _observed(self, now: float) -> None:
        if self.steps.new:
            self.steps.new = False
            self._begin_rollout(self.steps)
        else:
            self.rollouts.builder.observe(self.steps.rows)
        self._go_on(now)

    def _acted(self, now: float) -> None:
        answer = self.inference
        actions = self.rollouts.builder.act(answer.rows, answer.version, answer.core)
        if self.steps.new:
            self._connect(now)
        else:
            self.steps.step(actions, now)
            self.waits.enter(Wait.ENV, now)

    def _credited(self, now: float) -> None:
        if self.rollouts.outbox.room:
            self._go_on(now)

    def _go_on(self, now: float) -> None:
        outbox, builder = self.rollouts.outbox, self.rollouts.builder
        if builder.complete:
            if outbox.room:
                outbox.push(builder.take(), self.steps.episodes, now, self.inference.acting)
                self.steps.episodes = []
            if not outbox.room and (builder.complete or not self._collect_ahead):
                self.waits.enter(Wait.CREDIT, now)
                return
        if self.steps.new or not self.inference.stream.open:
            self._connect(now)
        else:
            self._infer(now)

    def _infer(self, now: float) -> None:
        rows, builder = self.steps.rows, self.rollouts.builder
        if self.inference.new:
            self.inference.new = False
            if not (builder.at_start and rows["first"].all()):
                rows["first"] = True
                self._begin_rollout(self.inference)
        self.inference.infer(rows, now, want_core=builder.at_start)
        self.waits.enter(Wait.BROKER, now)

    def _begin_rollout(self, after: GroupPlane) -> None:
        """Begin at the newest observation. A rollout in progress that holds steps is lost."""
        after.cut += 0 if self.rollouts.builder.at_start else self.num_envs
        self.rollouts.builder.restart(self.steps.rows)


#: what a group does in a state about a message of a plane: the upper half of its table
TRANSITIONS: dict[tuple[Wait, Plane, Reply], Callable[[EnvGroup, float], None]] = {
    (Wait.CONNECT, Plane.STEPS, Reply.WELCOME): EnvGroup._connected,
    (Wait.CONNECT, Plane.INFERENCE, Reply.WELCOME): EnvGroup._connected,
    (Wait.CONNECT, Plane.ROLLOUTS, Reply.WELCOME): EnvGroup._connected,
    (Wait.ENV, Plane.STEPS, Reply.ANSWER): EnvGroup._observed,
    (Wait.ENV, Plane.STEPS, Reply.LOST): EnvGroup._connect,
    (Wait.ENV, Plane.STEPS, Reply.WELCOME): EnvGroup._connect,
    (Wait.BROKER, Plane.INFERENCE, Reply.ANSWER): EnvGroup._acted,
    (Wait.BROKER, Plane.INFERENCE, Reply.LOST): EnvGroup._connect,
    (Wait.BROKER, Plane.INFERENCE, Reply.WELCOME): EnvGroup._connect,
    (Wait.CREDIT, Plane.ROLLOUTS, Reply.ANSWER): EnvGroup._credited,
    (Wait.CREDIT, Plane.ROLLOUTS, Reply.WELCOME): EnvGroup._credited,
}
