"""gymnasium's spaces as this project's specs, and legal actions as what a space expects.

Observations: Box, MultiBinary and MultiDiscrete as they are, float64 as float32; Discrete, Dict and Tuple have to be
flattened before. Actions: Discrete, MultiDiscrete, MultiBinary and Box, all counted from 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import EnvError, RemoteProtocolError
from zerobeast.common.wire.codec import DTYPES, pack
from zerobeast.common.wire.specs import ActionSpec, EnvSpec

MAX_SPEC_BYTES = 60_000  #: so that WELCOME, which carries it, fits a header


def obs_layout(space: Any) -> tuple[str, tuple[int, ...]]:
    """(dtype, shape) of one observation.

    Raises:
      EnvError: it is not one array of numbers.
    """
    if space.shape is None or space.dtype is None:
        raise EnvError(f"observation space {space} is not supported, expected one array of numbers")
    name = np.dtype(space.dtype).str
    if name == "<f8":
        name = "<f4"
    if name not in DTYPES or any(size < 1 for size in space.shape):
        raise EnvError(f"observation space {space} is not supported, expected fixed-size numbers")
    return name, tuple(int(size) for size in space.shape)


def action_spec(space: Any) -> ActionSpec:
    """What an agent may choose from.

    Raises:
      EnvError: the space is of another kind.
    """
    from gymnasium import spaces

    shape = tuple(int(size) for size in space.shape or ())
    if isinstance(space, spaces.Discrete):
        return ActionSpec.discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return ActionSpec("multi_discrete", shape, tuple(int(n) for n in space.nvec.flat))
    if isinstance(space, spaces.MultiBinary):
        return ActionSpec("multi_discrete", shape, (2,) * int(np.prod(shape)))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = (tuple(float(x) for x in bound.flat) for bound in (space.low, space.high))
        return ActionSpec("box", shape, (), low, high)
    raise EnvError(f"action space {space} is not supported, expected Discrete, MultiDiscrete, MultiBinary or float Box")


def env_spec(
    env_id: str, obs: tuple[str, tuple[int, ...]], action_space: Any, stack: int = 1, skip: int = 1
) -> EnvSpec:
    """What travels to peers, by the rules that they will check it with.

    Args:
      env_id: as the user wrote it.
      obs: (dtype, shape) of one frame.
      action_space: of one environment.
      stack: frames that a policy sees.
      skip: env_frames per agent_step.

    Raises:
      EnvError: no peer would accept it.
    """
    dtype, shape = obs
    wire = EnvSpec(env_id, shape, dtype, action_spec(action_space), stack, skip).to_wire()
    if len(pack(wire)) > MAX_SPEC_BYTES:
        raise EnvError(f"env.id {env_id!r} is not supported: its action space {action_space.shape} is too large")
    try:
        return EnvSpec.from_wire(wire)
    except RemoteProtocolError as error:
        raise EnvError(f"env.id {env_id!r} is not supported: {error}") from error


class ActionAdapter:
    """Turns legal actions into what the space of one environment expects."""

    def __init__(self, space: Any) -> None:
        from gymnasium import spaces

        self._start = space.start if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else 0
        self._bounds = (space.low, space.high) if isinstance(space, spaces.Box) else None
        self._dtype = space.dtype

    def __call__(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Of one or several environments [..., *shape]; a space need not count its choices from 0."""
        if self._bounds is not None:  # once more, since float32 rounds a float64 bound
            clipped: NDArray[Any] = np.clip(actions.astype(self._dtype), *self._bounds)
            return clipped
        shifted: NDArray[Any] = (actions + self._start).astype(self._dtype)
        return shifted
