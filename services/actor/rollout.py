"""Steps in, rollouts out: pure numpy, no sockets, no clock.

    builder = RolloutBuilder(env, policy, unroll_length=20, num_envs=16)
    builder.restart(rows)                       # the first observation
    while True:
        if builder.complete: push(builder.take())   # T + 1 observations are there
        want_core = builder.at_start                # the recurrent state that obs[0] will meet is needed
        builder.act(act_rows, policy_version, core) # the policy's answer to the newest observation
        builder.observe(rows)                       # what the environments answered to those actions

`zerobeast.common.wire.records` defines the entries. The last step of a rollout is the first of the next.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.wire import EnvSpec, PolicySpec, action_record, rollout_record
from zerobeast.common.wire.stacks import stack_places

Rows = NDArray[np.void]
ARRIVALS = ("first", "reward", "terminated", "truncated")  #: fields that come with every observation


class RolloutBuilder:
    """Assembles the rollouts of one env group.

    Args:
      env: what the rows hold.
      policy: what the answers hold.
      unroll_length: T.
      num_envs: N, rows per message.
    """

    def __init__(self, env: EnvSpec, policy: PolicySpec, unroll_length: int, num_envs: int) -> None:
        self.spec = rollout_record(env, policy, unroll_length)
        self.unroll_length = unroll_length
        self.num_envs = num_envs
        self._history = env.frame_stack - 1
        self._extras = [extra.name for extra in policy.extras]
        self._action: NDArray[Any] = np.zeros(num_envs, action_record(env.action).dtype)["action"]
        self._masks = ("action_mask",) if env.action_mask else ()
        self._spare: list[Rows] = []
        self.rows = self._blank()
        self.t = 0  #: index of the newest observation

    @property
    def at_start(self) -> bool:
        """Whether the newest observation is obs[0]."""
        return self.t == 0

    @property
    def complete(self) -> bool:
        """Whether the newest observation is obs[T]."""
        return self.t == self.unroll_length

    def restart(self, rows: Rows) -> None:
        """Drop the unroll in progress and begin at this observation [N], as if episodes started here.

        Rows whose `first` is not set are recorded with it set: the caller must show them to the broker the same
        way, so that both drop what came before.
        """
        self.t = 0
        self._action[...] = 0
        self._record(rows)
        self.rows["first"][:, 0] = True
        for index in range(self._history):
            self.rows["obs"][:, index] = rows["obs"]

    def act(self, act_rows: Rows, policy_version: int, core: NDArray[np.float32] | None) -> NDArray[Any]:
        """Record the policy's answer [N] to the newest observation and return the actions to send."""
        t = self.t
        for name in self._extras:
            self.rows[name][:, t] = act_rows[name]
        self.rows["policy_version"][:, t] = policy_version
        if t == 0 and core is not None:
            self.rows["core_state"] = core
        self._action[...] = act_rows["action"]
        return self._action

    def observe(self, rows: Rows) -> None:
        """Record what the environments answered [N] to the actions of `act`."""
        self.t += 1
        self._record(rows)

    def take(self) -> Rows:
        """Hand out the complete rollout [N] and begin the next at its last step.

        The array belongs to the caller until it comes back through `recycle`.
        """
        assert self.complete, "T + 1 observations make a rollout"
        done, self.rows = self.rows, self._spare.pop() if self._spare else self._blank()
        for name in (*ARRIVALS, *self._masks, "last_action"):
            self.rows[name][:, 0] = done[name][:, -1]
        self.rows["obs"][:, : self._history + 1] = self._stack_at_end(done)
        self.t = 0
        return done

    def recycle(self, rows: Rows) -> None:
        """Give back an array of `take` that is no longer read."""
        self._spare.append(rows)

    def _record(self, rows: Rows) -> None:
        t = self.t
        self.rows["obs"][:, self._history + t] = rows["obs"]
        for name in (*ARRIVALS, *self._masks):
            self.rows[name][:, t] = rows[name]
        self.rows["last_action"][:, t] = self._action

    def _stack_at_end(self, done: Rows) -> NDArray[Any]:
        """[N, k, *frame]: the stack of obs[T] as the policy got it."""
        rows, ts = np.arange(self.num_envs), np.full(self.num_envs, self.unroll_length)
        stack: NDArray[Any] = done["obs"][rows[:, None], stack_places(done["first"], rows, ts, self._history + 1)]
        return stack

    def _blank(self) -> Rows:
        return np.zeros(self.num_envs, self.spec.dtype)
