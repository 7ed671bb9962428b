"""An env group's ends of its three planes: the stream of each, and the messages on it. No sockets, no clock.

Each WELCOME holds what the next HELLO needs, so HELLO is sent to a broker once an environment is known, and to the
learner once a policy is. `group` decides which of the three goes on when.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import ConfigError, RemoteProtocolError, raise_as
from zerobeast.common.transport import Incoming
from zerobeast.common.wire import (
    MAX_ENV_SEED,
    EnvSpec,
    PolicySpec,
    act_record,
    action_record,
    rollout_record,
    step_record,
)
from zerobeast.common.wire.checks import find_flaw, find_forbidden, find_illegal
from zerobeast.common.wire.episodes import Entry, ends_of, read_lost, to_entry
from zerobeast.common.wire.messages import Frames, Header, Kind
from zerobeast.common.wire.seeds import continue_seed
from zerobeast.common.wire.stream import Reply, Stream
from zerobeast.services.actor.outbox import Outbox
from zerobeast.services.actor.rollout import RolloutBuilder
from zerobeast.services.actor.sides import Sides

D = TypeVar("D")
Refuse = Callable[[RemoteProtocolError], None]


def receive_rows(message: Incoming, rows: NDArray[Any], env: EnvSpec) -> None:
    """Receive step rows [N]. Raises RemoteProtocolError if they are malformed or cannot be used."""
    if not message.into(rows):
        what = f"{len(rows)} step rows of {rows.dtype.itemsize} bytes"
        raise RemoteProtocolError(f"OBS: expected one frame of {what}", "payload")
    sentence = find_flaw(rows) or find_illegal("obs", rows["obs"], env.obs, packed=True)
    if not sentence and env.action_mask and (found := find_forbidden(rows["action_mask"], env.action)):
        sentence = f"action_mask {found}"
    if sentence:
        raise RemoteProtocolError(f"OBS: {sentence}", "values")


class GroupPlane:
    """A group's end of one plane."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.greets = False  #: whether the terms of HELLO are known
        self.new = True  #: whether the server that answers next has no state of this group
        self.cut = 0  #: rollouts in progress that were lost with sessions on this plane

    def due(self, now: float) -> tuple[Header, Frames] | None:
        return self.stream.due(now) if self.greets else None

    def mark_sent(self, now: float) -> None:
        """Note that what `due` handed out was sent."""
        self.stream.note_sent(now)

    def deadline(self) -> float:
        """When `due` has something to repeat."""
        return self.stream.deadline() if self.greets else math.inf

    def take(self, message: Incoming, refuse: Refuse, now: float) -> Reply:
        """Take a message, and return what it means. An answer that cannot be used ends its session.

        Raises:
          ConfigError: a peer refuses for good, or offers something impossible or different from before.
        """
        if not self.greets:
            return Reply.STALE  # nothing was asked there yet
        try:
            reply = self._accept(message, refuse, now)
        except RemoteProtocolError as error:
            refuse(error)
            if not self.stream.expects(message.header):
                return Reply.STALE
            self.stream.reject(str(error), now)
            reply = Reply.LOST
        if reply is Reply.LOST or reply is Reply.WELCOME:
            self._on_loss()
        if reply is Reply.WELCOME:
            self._on_welcome()
        return reply

    def give_up(self, now: float) -> None:
        """End the session, because HELLO goes to another server next."""
        self.stream.give_up(now)
        self._on_loss()

    def _accept(self, message: Incoming, refuse: Refuse, now: float) -> Reply:
        if self.stream.expects(message.header):
            self._receive(message, refuse)
        return self.stream.accept(message.header, now)

    def _receive(self, message: Incoming, refuse: Refuse) -> None:
        """Read the answer to a request. Raises RemoteProtocolError if it cannot be used."""

    def _on_welcome(self) -> None: ...

    def _on_loss(self) -> None:
        self.new = True

    def _read_offer(self, name: str, read: Callable[[Any], D], before: D | None) -> D:
        """Read an entry of the WELCOME. Raises ConfigError if it is impossible or has changed."""
        with raise_as(ConfigError, f"{self.stream.server} offers an impossible {name!r}", RemoteProtocolError):
            offer = read(self.stream.terms.get(name))
        if before is not None and offer != before:
            raise ConfigError(f"{self.stream.server} now offers {offer}, but offered {before} before")
        return offer


class StepsPlane(GroupPlane):
    """The plane to the env-server: RESET and STEP, answered by observations. `new` until RESET is answered."""

    def __init__(self, stream: Stream, num_envs: int, seed: int, sides: Sides | None = None) -> None:
        super().__init__(stream)
        self._sides = sides
        self.greets = True
        self.env: EnvSpec | None = None
        self.progress: float | None = None  #: of the run, which goes with each request if the environments follow it
        self.agent_steps = 0
        self.episodes: list[Entry] = []  #: that have ended, until a rollout carries them
        self._num_envs, self._seed = num_envs, seed

    def reset(self, now: float) -> None:
        self.stream.request(Kind.RESET, (None, None, None, self.progress), (), now)

    def step(self, actions: NDArray[Any], now: float) -> None:
        """Request a step with actions [N]."""
        self._action_rows["action"] = actions
        self.stream.request(Kind.STEP, (self.progress,), (self._action_rows,), now)

    def _receive(self, message: Incoming, refuse: Refuse) -> None:
        assert self.env is not None, "there are rows"
        receive_rows(message, self.rows, self.env)
        ends = ends_of(message.header.body[0], refuse)
        found = ends if self._sides is None else self._sides.judge_ends(self.rows, ends)
        lost = read_lost(message.header.body[0])
        self.episodes += map(to_entry, filter(None, found))
        self.episodes += [to_entry(one) for one in lost if self._sides is None or one.row in self._sides.learned]
        self.agent_steps += 0 if self.new else self._num_envs

    def _on_welcome(self) -> None:
        env = self._read_offer("env", lambda entries: EnvSpec.from_wire(entries).for_policies(), self.env)
        if self.env is None:
            self.env = env
            self.rows = np.zeros(self._num_envs, step_record(env).dtype)  #: the newest observations
            self._action_rows = np.zeros(self._num_envs, action_record(env.action).dtype)

    def _on_loss(self) -> None:
        super()._on_loss()
        # the next environments must not repeat the episodes that these began with
        self.stream.hello_terms["seed"] = continue_seed(self._seed, self.agent_steps) % (MAX_ENV_SEED + 1)


class OwnSteps:
    """In place of a `StepsPlane`: observations from the caller, and the action for the newest one."""

    def __init__(self, env: EnvSpec) -> None:
        self.env = env.for_policies()
        self.new = True
        self.rows = np.zeros(1, step_record(env).dtype)
        self.action: NDArray[Any] = np.zeros(1, action_record(env.action).dtype)["action"]
        self.episodes: list[Entry] = []
        self.agent_steps, self.cut = 0, 0
        self.progress: float | None = None  #: of no use here

    def reset(self, now: float) -> None:
        """Do nothing: the caller begins when it likes."""

    def step(self, actions: NDArray[Any], _now: float) -> None:
        self.action[...] = actions


class InferencePlane(GroupPlane):
    """The plane to the broker: INFER, answered by actions. `new` until INFER is sent with `first` set in all rows."""

    def __init__(self, stream: Stream, sides: Sides | None = None) -> None:
        super().__init__(stream)
        self._sides = sides
        self.policy: PolicySpec | None = None
        self.version = -1  #: of the weights that chose the newest actions
        self.acting = 0  #: epoch of the broker that chose them
        self.version_drops = 0  #: times that an older one followed a newer one
        self._with_core = False

    def greet_with(self, env: EnvSpec, num_envs: int) -> None:
        """Send HELLO from now on, for N environments with this spec."""
        self._env, self._num_envs, self.greets = env, num_envs, True
        self.stream.hello_terms.update(env=env.to_wire(), num_envs=num_envs)

    def infer(self, rows: NDArray[np.void], now: float, *, want_core: bool) -> None:
        """Request actions for observations [N] and, if wanted, the recurrent states before them."""
        self._with_core = want_core and self.core.size > 0
        self.stream.request(Kind.INFER, (want_core,), (rows,), now)

    def _receive(self, message: Incoming, _refuse: Refuse) -> None:
        with_core = self._with_core
        if not message.into(self.rows, last=not with_core) or (with_core and not message.into(self.core)):
            raise RemoteProtocolError(f"ACT: expected {self.rows.nbytes} bytes of act rows", "payload")
        if sentence := find_illegal("action", self.rows["action"], self._env.action) or find_flaw(self.rows):
            raise RemoteProtocolError(f"ACT: {sentence}", "values")
        if with_core and not np.isfinite(self.core).all():
            raise RemoteProtocolError("ACT: a recurrent state is not finite", "values")
        version, *others = message.header.body
        if self._sides is not None:
            self._sides.face(*others)
        self.version_drops += version < self.version
        self.version, self.acting = version, message.header.epoch

    def _on_welcome(self) -> None:
        policy = self._read_offer("policy", PolicySpec.from_wire, self.policy)
        if self.policy is None:
            self.policy = policy
            self.rows = np.zeros(self._num_envs, act_record(self._env, policy).dtype)  #: the newest answer
            self.core = np.zeros((self._num_envs, policy.core_size), np.float32)  #: before obs[0] of the rollout


class RolloutsPlane(GroupPlane):
    """The plane to the learner: rollouts, answered by credit for more. Unacknowledged rollouts outlive a session.

    Without an `unroll_length`, the learner is asked for it.
    """

    builder: RolloutBuilder  #: once the policy and the length of a rollout are known

    def __init__(self, stream: Stream, unroll_length: int | None, no_progress_s: float) -> None:
        super().__init__(stream)
        self.outbox = Outbox(stream, no_progress_s)
        self.unroll_length = unroll_length
        if unroll_length is not None:
            self.stream.hello_terms["unroll_length"] = unroll_length

    def greet_with(self, env: EnvSpec, policy: PolicySpec, num_envs: int) -> None:
        """Send HELLO from now on."""
        self._env, self._policy, self._num_envs, self.greets = env, policy, num_envs, True
        self.stream.hello_terms.update(env=env.to_wire(), policy=policy.to_wire(), num_envs=num_envs)
        if self.unroll_length is not None:
            self._begin(self.unroll_length)

    def due(self, now: float) -> tuple[Header, Frames] | None:
        return self.outbox.due(now) if self.greets else None

    def mark_sent(self, _now: float) -> None:
        self.outbox.mark_sent()

    def _accept(self, message: Incoming, _refuse: Refuse, now: float) -> Reply:
        reply, free = self.outbox.accept(message.header, now)
        for rows in free:
            self.builder.recycle(rows)
        return reply

    def _on_welcome(self) -> None:
        if self.unroll_length is None or "unroll_length" in self.stream.terms:
            length = self._read_offer("unroll_length", self._length, self.unroll_length)
            if self.unroll_length is None:
                self._begin(length)

    def _begin(self, unroll_length: int) -> None:
        self.unroll_length = unroll_length
        self.builder = RolloutBuilder(self._env, self._policy, unroll_length, self._num_envs)

    def _length(self, offer: Any) -> int:
        if type(offer) is not int or offer < 1:
            raise RemoteProtocolError(f"it is {offer!r:.40}, expected 1 or more", "terms")
        rollout_record(self._env, self._policy, offer)  # raises if such rows would be too large
        return offer
