"""One group of environments: which of its planes goes on when. No sockets, no clock.

An actor runs several groups in turn, so that one steps while another is inferred. A restart of the env-server costs the
episodes and the rollout in progress; of the broker, the rollout in progress, which begins anew with zero recurrent
state on both sides; of the learner, nothing.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.settings import RunConfig
from zerobeast.common.transport import Incoming, index_of
from zerobeast.common.wire import EnvSpec
from zerobeast.common.wire.messages import Plane
from zerobeast.common.wire.stream import Reply, Stream
from zerobeast.services.actor.outbox import MAX_WAITING_EPISODES
from zerobeast.services.actor.planes import GroupPlane, InferencePlane, OwnSteps, Refuse, RolloutsPlane, StepsPlane
from zerobeast.services.actor.sides import Sides
from zerobeast.services.actor.waits import TIMEOUTS, Timeouts, Wait, Waits


class Group:
    """N environments that are stepped and inferred together.

    A group waits for one thing at a time, which is its state. Events that are not in this table do not change it:

        state    event                if                     action                  next
        -------  -------------------  ---------------------  ----------------------  -------
        CONNECT  all sessions open    env session is new     RESET                   ENV
        CONNECT  all sessions open    env session is known   begin a rollout         act
        ENV      OBS                  env session is new     begin a rollout         go on
        ENV      OBS                  env session is known   record obs              go on
        ENV      env session lost                                                    CONNECT
        BROKER   ACT                  env session is new     record act              CONNECT
        BROKER   ACT                  env session is known   record act, STEP        ENV
        BROKER   broker session lost                                                 CONNECT
        CREDIT   ACK or WELCOME       room in the window                             go on

        go on    rollout complete                            push                    go on
        go on    rollout incomplete   no broker session                              CONNECT
        go on    rollout incomplete   env session is new                             CONNECT
        go on    rollout incomplete   both sessions known                            act

        act      rollout without act  no room in the window                          CREDIT
        act      rollout without act  room in the window     INFER                   BROKER
        act      rollout with acts                           INFER                   BROKER

    A session is new until its RESET is answered, or its first INFER sent. INFER in a new one begins a rollout, since
    the broker keeps nothing of the one in progress.

    Args:
      slot: which of its client's groups this is.
      num_envs: N.
      steps: where observations come from.
      inference: plane to the broker.
      rollouts: plane to the learner.
      waits: counts what it waits for.
      sides: if its environments have an opponent, which rows are learned from.
    """

    def __init__(
        self,
        slot: int,
        num_envs: int,
        steps: StepsPlane | OwnSteps,
        inference: InferencePlane,
        rollouts: RolloutsPlane,
        waits: Waits,
        *,
        sides: Sides | None = None,
    ) -> None:
        self.slot, self.num_envs = slot, num_envs
        self.learned = slice(num_envs) if sides is None else sides.learned  #: rows that are learned from
        self.rollouts_each = num_envs if sides is None else len(sides.learned)  #: rows of a ROLLOUT
        self.steps, self.inference, self.rollouts, self.waits = steps, inference, rollouts, waits
        self.planes: dict[Plane, GroupPlane] = {Plane.INFERENCE: inference, Plane.ROLLOUTS: rollouts}

    def deadline(self) -> float:
        return min(end.deadline() for end in self.planes.values())

    def take(self, plane: Plane, message: Incoming, refuse: Refuse, now: float) -> None:
        reply = self.planes[plane].take(message, refuse, now)
        self.steps.progress = self.rollouts.outbox.progress
        if reply is Reply.WELCOME:
            self._introduce()
        self._react(plane, reply, now)

    def abandon(self, plane: Plane, now: float) -> None:
        """Give up the session with a server, because HELLO goes to another one next."""
        self.planes[plane].give_up(now)
        self._react(plane, Reply.LOST, now)

    def _react(self, plane: Plane, reply: Reply, now: float) -> None:
        if (transition := TRANSITIONS.get((self.waits.current, plane, reply))) is not None:
            transition(self, now)

    def _introduce(self) -> None:
        """Send HELLO on the next plane, if the WELCOMEs so far hold what it needs."""
        env, policy = self.steps.env, self.inference.policy
        if env and not self.inference.greets:
            self.inference.greet_with(env, self.num_envs)
        if env and policy and not self.rollouts.greets:
            self.rollouts.greet_with(env, policy, self.rollouts_each)

    def _connect(self, now: float) -> None:
        self.waits.enter(Wait.CONNECT, now)
        self._on_connected(now)

    def _on_connected(self, now: float) -> None:
        if not self._is_connected():
            return
        if self.steps.new:
            self.steps.reset(now)
            self.waits.enter(Wait.ENV, now)
        else:
            self._act(now)

    def _is_connected(self) -> bool:
        return all(end.stream.open for end in self.planes.values())

    def _on_observation(self, now: float) -> None:
        if self.steps.new:
            self.steps.new = False
            self._begin_rollout(self.steps)
        else:
            self.rollouts.builder.observe(self.steps.rows[self.learned])
        self._go_on(now)

    def _on_action(self, now: float) -> None:
        answer = self.inference
        self.rollouts.builder.act(answer.rows[self.learned], answer.version, answer.core[self.learned])
        if self.steps.new:
            self._connect(now)
        else:
            self.steps.step(answer.rows["action"], now)
            self.waits.enter(Wait.ENV, now)

    def _on_credit(self, now: float) -> None:
        if self._may_begin:
            self._go_on(now)

    def _go_on(self, now: float) -> None:
        if self.rollouts.builder.complete:
            self._push(now)
        if self.steps.new or not self.inference.stream.open:
            self._connect(now)
        else:
            self._act(now)

    def _push(self, now: float) -> None:
        """Send the complete rollout and begin the next one at its last observation."""
        self.rollouts.outbox.push(self.rollouts.builder.take(), self.steps.episodes, now, self.inference.acting)
        self.steps.episodes = []

    @property
    def _may_begin(self) -> bool:
        """Whether the first actions of a rollout may be requested."""
        return self.rollouts.outbox.room

    def _act(self, now: float) -> None:
        """Request actions, unless they would begin a rollout that the window does not admit."""
        if self.rollouts.builder.at_start and not self._may_begin:
            self.waits.enter(Wait.CREDIT, now)
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

    def _begin_rollout(self, after: GroupPlane | OwnSteps) -> None:
        """Begin at the newest observation. A rollout in progress that holds steps is lost."""
        after.cut += 0 if self.rollouts.builder.at_start else self.rollouts_each
        self.rollouts.builder.restart(self.steps.rows[self.learned])


class EnvGroup(Group):
    """A group whose environments an env-server hosts.

    Args:
      config: of the run, with the environment of this group alone.
      sender: id of this actor.
      seed: of its first environment.
      slot, waits: as for `Group`.
      timeouts: of the actor.
    """

    steps: StepsPlane

    def __init__(
        self, config: RunConfig, sender: int, slot: int, seed: int, waits: Waits, timeouts: Timeouts = TIMEOUTS
    ) -> None:
        num_envs = config.actor.envs_per_group
        env_terms = {"env": config.env.terms(), "num_envs": num_envs, "seed": seed}
        env_server = Stream(sender, slot, env_terms, f"env-server at {config.envserver.endpoint}")
        follows = {"progress": True} if config.env.follows_progress else {}
        learner = Stream(sender, slot, follows, f"learner at {config.learner.endpoint}")
        opposed = config.env.opponent_rows(num_envs, index_of(sender) + slot)
        sides = None if opposed is None else Sides(opposed, config.env)
        steps = StepsPlane(env_server, num_envs, seed, sides)
        super().__init__(
            slot,
            num_envs,
            steps,
            InferencePlane(Stream(sender, slot, {}, f"broker at {config.broker.endpoint}"), sides),
            RolloutsPlane(learner, config.learner.unroll_length, timeouts.no_progress),
            waits,
            sides=sides,
        )
        self.planes = {Plane.STEPS: steps, **self.planes}


class AgentGroup(Group):
    """An environment that steps itself: a game or a robot, which asks for an action when it needs one.

    It goes through the same states, and its rollouts are the same. Only the observations come from the caller.

    Args:
      env: as its caller describes it.
      sender: id of this process.
      broker, learner: their endpoints, for error messages.
      slot, waits: as for `Group`.
      drops: whether a rollout that the window has no room for is dropped and acting goes on; false: it waits.
    """

    steps: OwnSteps

    def __init__(
        self,
        env: EnvSpec,
        sender: int,
        slot: int,
        broker: str,
        learner: str,
        waits: Waits,
        *,
        drops: bool,
    ) -> None:
        inference = InferencePlane(Stream(sender, slot, {}, f"broker at {broker}"))
        rollouts = RolloutsPlane(Stream(sender, slot, {}, f"learner at {learner}"), None, TIMEOUTS.no_progress)
        super().__init__(slot, 1, OwnSteps(env), inference, rollouts, waits)
        self._drops = drops
        self.dropped = 0  #: rollouts that there was no room for
        self._introduce()

    @property
    def is_free(self) -> bool:
        """Whether it waits for the caller, since the action for the newest observation is ready."""
        return self.waits.current is Wait.ENV

    def observe(self, row: NDArray[np.void], now: float) -> None:
        """Take the next observation, [1] of `step_record`. Its action is ready once `is_free` is True again."""
        assert self.is_free, "one observation at a time"
        self.steps.agent_steps += not self.steps.new
        self.steps.rows[...] = row
        self._on_observation(now)

    def _is_connected(self) -> bool:
        """As for any group, but with `drops` it can do without the learner once it has the unroll length."""
        if self._drops and self.rollouts.unroll_length is not None:
            return self.inference.stream.open
        return super()._is_connected()

    @property
    def _may_begin(self) -> bool:
        return self._drops or super()._may_begin

    def _push(self, now: float) -> None:
        if self._drops and not self.rollouts.outbox.room:
            builder = self.rollouts.builder
            builder.recycle(builder.take())
            self.dropped += 1
            del self.steps.episodes[:-MAX_WAITING_EPISODES]  # the learner may stay away for days
        else:
            super()._push(now)


#: what a group does in a state when a plane's message comes: the upper half of its table
TRANSITIONS: dict[tuple[Wait, Plane, Reply], Callable[[Group, float], None]] = {
    (Wait.CONNECT, Plane.STEPS, Reply.WELCOME): Group._on_connected,
    (Wait.CONNECT, Plane.INFERENCE, Reply.WELCOME): Group._on_connected,
    (Wait.CONNECT, Plane.ROLLOUTS, Reply.WELCOME): Group._on_connected,
    (Wait.ENV, Plane.STEPS, Reply.ANSWER): Group._on_observation,
    (Wait.ENV, Plane.STEPS, Reply.LOST): Group._connect,
    (Wait.ENV, Plane.STEPS, Reply.WELCOME): Group._connect,
    (Wait.BROKER, Plane.INFERENCE, Reply.ANSWER): Group._on_action,
    (Wait.BROKER, Plane.INFERENCE, Reply.LOST): Group._connect,
    (Wait.BROKER, Plane.INFERENCE, Reply.WELCOME): Group._connect,
    (Wait.CREDIT, Plane.ROLLOUTS, Reply.ANSWER): Group._on_credit,
    (Wait.CREDIT, Plane.ROLLOUTS, Reply.WELCOME): Group._on_credit,
}
