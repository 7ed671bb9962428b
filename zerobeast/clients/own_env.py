"""Converts a program's observations to the rows that are sent, and received actions to its own. No I/O."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zerobeast.common.errors import EnvError, RemoteProtocolError, raise_as
from zerobeast.common.wire import ArraySpace, EnvSpec, iterate_arrays, nest_values, step_record
from zerobeast.common.wire.bits import pack_bits
from zerobeast.common.wire.checks import find_forbidden
from zerobeast.services.envserver.spaces import (
    Adapter,
    action_adapter,
    drop_entries,
    env_spec,
    fit_value,
    make_legal,
    obs_adapter,
    split_arrays,
)


class OwnEnv:
    """Your own environment, which ZeroBeast does not step: its name, its spaces, and its values as rows.

    Args:
      env_id: its name in the run: `env.id` of broker and learner.
      observation_space: the gymnasium space of one frame.
      action_space: the gymnasium space of an action.
      frame_stack: how many of the newest frames the policy gets. Only the newest is passed in.
      frame_skip: frames of the program per action, for the counters.
      action_mask: whether calls may pass a mask of legal choices.
      leave_out: entries of observations that are not sent, as `env.leave_out` names them.

    Raises:
      EnvError: no peer would accept this environment.

    Examples:
      >>> import numpy as np
      >>> import zerobeast as zb
      >>> from gymnasium.spaces import Box, Discrete
      >>> env = zb.OwnEnv("Catch-v0", Box(0, 1, (50,)), Discrete(3, start=-1))
      >>> env.row(np.zeros(50, np.float32), reward=1.0)["reward"].tolist()
      [1.0]
      >>> env.action(np.array([0]))  # choices count from 0 on the wire, from -1 here
      -1
    """

    def __init__(
        self,
        env_id: str,
        observation_space: Any,
        action_space: Any,
        *,
        frame_stack: int = 1,
        frame_skip: int = 1,
        action_mask: bool = False,
        leave_out: Sequence[str] = (),
    ) -> None:
        if leave_out:
            observation_space = drop_entries(observation_space, leave_out)
        spec = env_spec(env_id, observation_space, action_space, stack=frame_stack, skip=frame_skip, masked=action_mask)
        self._configure(spec, obs_adapter(observation_space), action_adapter(action_space))

    @classmethod
    def of(cls, spec: EnvSpec) -> Self:
        """An environment described without gymnasium; a value of several parts is a dict keyed by their names, and
        choices count from 0.

        Raises:
          EnvError: no peer would accept this environment.
        """
        with raise_as(EnvError, f"environment {spec.env_id!r} is not supported", RemoteProtocolError):
            checked = EnvSpec.from_wire(spec.to_wire())
        env, space = cls.__new__(cls), checked.action
        env._configure(
            checked,
            lambda obs: obs,
            lambda given: nest_values(space, (part for _, part in iterate_arrays(space, given))),
        )
        return env

    def _configure(self, spec: EnvSpec, adapt_obs: Adapter, adapt_action: Adapter) -> None:
        self.spec, self._adapt_obs, self._adapt_action = spec, adapt_obs, adapt_action
        self._dtype = step_record(spec).dtype

    def row(
        self,
        obs: Any,
        reward: float = 0.0,
        mask: ArrayLike | None = None,
        *,
        first: bool = False,
        terminated: bool = False,
        truncated: bool = False,
    ) -> NDArray[np.void]:
        """Make a row, [1] of `step_record`. Without a mask all choices are legal.

        Raises:
          EnvError: a value cannot be sent; the error names it, and what was expected.
        """
        rows = np.zeros(1, self._dtype)
        try:
            adapted = self._adapt_obs(obs)
        except (TypeError, ValueError, LookupError) as error:
            raise EnvError(argument="obs", value=obs, expected=f"a value of its space ({error})") from error
        parts, columns = split_arrays("obs", self.spec.obs, adapted), iterate_arrays(self.spec.obs, rows["obs"])
        for (path, space, value), (_, column) in zip(parts, columns, strict=True):
            whole = fit_value(path, value, space, exact=True)
            column[0] = pack_bits(whole, space) if space.bits else whole
        rows["reward"] = fit_value("reward", reward, ArraySpace.box(()))
        rows["terminated"], rows["truncated"], rows["first"] = bool(terminated), bool(truncated), first
        if self.spec.action_mask:
            space = ArraySpace("multi_binary", "|b1", (self.spec.mask_size,))
            rows["action_mask"] = True if mask is None else fit_value("mask", mask, space, exact=True)
            if sentence := find_forbidden(rows["action_mask"], self.spec.action):
                raise EnvError(f"mask {sentence}")
        elif mask is not None:
            raise EnvError("mask is given, expected none: pass action_mask=True where the environment is described")
        return rows

    def action(self, actions: NDArray[Any]) -> Any:
        """The program's action, from the actions [1, *shape] that a broker chose: legal, and clipped to its box."""
        action = self._adapt_action(make_legal(actions, self.spec.action)[0])
        return action.item() if isinstance(action, np.generic) and np.issubdtype(action.dtype, np.integer) else action
