"""Conversion between gymnasium's spaces and values and those on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from zerobeast.common.errors import ConfigError
from zerobeast.common.wire.description import short
from zerobeast.common.wire.spaces import ArraySpace, Space


def gym_space(space: Space, stack: int = 1) -> gymnasium.Space[Any]:
    """The gymnasium space of one environment's observations or actions; its choices count from 0.

    Args:
      space: as an env-server describes it.
      stack: how many of the newest observations are seen as one, [stack, *shape] if more than 1.
    """
    if not isinstance(space, ArraySpace):
        parts = [(part.name, gym_space(part.space, stack)) for part in space.spaces]
        return spaces.Dict(parts) if space.kind == "dict" else spaces.Tuple([part for _, part in parts])
    dtype: Any = np.dtype(space.dtype).type
    lead = (stack,) if stack > 1 else ()
    if space.kind == "box":
        low, high = (np.broadcast_to(_bound(bound, dtype), lead + space.shape) for bound in space.bounds)
        return spaces.Box(low, high, dtype=dtype)
    if space.kind == "multi_binary":
        return spaces.MultiBinary(lead + space.shape if lead or len(space.shape) > 1 else space.shape[0])
    if space.kind == "discrete" and not lead:
        return spaces.Discrete(space.sizes[0], dtype=dtype)
    sizes = np.broadcast_to(np.reshape(space.sizes, space.shape), lead + space.shape)
    return spaces.MultiDiscrete(sizes.copy(), dtype=dtype)


def _bound(bound: NDArray[np.float64], dtype: Any) -> NDArray[Any]:
    """A box's bound in its dtype. Sent as float64, it may lie beyond an integer's limits: infinity, or 2^63."""
    if (kind := np.dtype(dtype).kind) == "f":
        return bound.astype(dtype)
    least, most = (0, 1) if kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    found = np.full(bound.shape, least, dtype)
    found[bound >= most] = most
    within = (bound > least) & (bound < most)
    found[within] = bound[within].astype(dtype)
    return found


def composed(space: Space, values: Iterator[Any]) -> Any:
    """Nest one value per array, in order, as gymnasium does: in dicts and tuples."""
    if isinstance(space, ArraySpace):
        return next(values)
    if space.kind == "dict":
        return {part.name: composed(part.space, values) for part in space.spaces}
    return tuple(composed(part.space, values) for part in space.spaces)


def named(space: Space, values: Any) -> Any:
    """Values as they are sent, keyed by the names of their parts: gymnasium's tuples become maps.

    Raises:
      ConfigError: a part is missing.
    """
    if isinstance(space, ArraySpace):
        return values
    try:
        pairs = [(part, values[part.name if space.kind == "dict" else int(part.name)]) for part in space.spaces]
    except (LookupError, TypeError) as error:
        names = ", ".join(part.name for part in space.spaces)
        raise ConfigError(f"actions are {short(values)}, expected a {space.kind} with the parts {names}") from error
    return {part.name: named(part.space, value) for part, value in pairs}
