"""Action masks: which choices an environment reports as legal now.

A mask is an entry of the Dict observation or of the info of each step; `env.action_mask` is its key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import EnvError
from zerobeast.common.wire.checks import forbidden
from zerobeast.common.wire.spaces import Space


def without_mask(space: Any, key: str) -> Any:
    """A gymnasium observation space without its mask entry."""
    from gymnasium import spaces

    if not key or not isinstance(space, spaces.Dict) or key not in space.spaces:
        return space
    return spaces.Dict({name: part for name, part in space.items() if name != key})


def mask_of(key: str, obs: Any, info: Any, action: Space, *, over: bool) -> NDArray[np.bool_]:
    """Which choices are legal, [choices of all components].

    Args:
      key: of the mask.
      obs: observation that may hold the mask.
      info: holds the mask if the observation does not.
      action: the action space.
      over: whether the episode has ended, so that there need not be a legal choice.

    Raises:
      EnvError: there is no mask, it has the wrong size, holds anything but 0 and 1, or forbids everything.
    """
    source = obs if isinstance(obs, dict) and key in obs else info
    if key not in source:
        raise EnvError(f"env.action_mask {key!r}: there is none in the observation or the info of a step")
    found = source[key]
    parts = found if isinstance(found, tuple) else (found,)
    mask = np.concatenate([np.ravel(part) for part in parts])
    size = sum(action.choices)
    if mask.size != size:
        raise EnvError(f"env.action_mask {key!r}: a mask of {mask.size} entries, expected {size}")
    legal: NDArray[np.bool_] = mask.astype(np.bool_)
    if not (legal == mask).all():
        raise EnvError(f"env.action_mask {key!r}: a mask holds something else than 0 and 1")
    if sentence := forbidden(legal, action):
        if not over:
            raise EnvError(f"env.action_mask {key!r}: a mask {sentence}")
        legal[:] = True
    return legal
