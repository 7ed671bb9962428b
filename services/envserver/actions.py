"""What may reach an environment: actions from the network, checked before anything acts on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.wire.spaces import ArraySpace, Space, by_array


def legal(actions: NDArray[Any], space: Space) -> NDArray[Any]:
    """A contiguous copy of `actions` [N, *shape] that every environment accepts.

    Real actions outside their box are clipped: a Gaussian policy cannot help it. A choice outside its range is a
    broken peer, and an emulator that is given one may never answer again.

    Raises:
      RemoteProtocolError: a choice is out of range or a real number is not finite.
    """
    copy = np.array(actions, order="C")
    for array, chosen in by_array(space, copy):
        if array.kind == "box":
            if not np.isfinite(chosen).all():
                raise RemoteProtocolError("an action is not a finite number", "action")
            low, high = (bound.astype(np.float32) for bound in array.bounds)
            chosen[...] = np.clip(chosen, low, high)
        else:
            _check_choices(chosen, array)
    return copy


def _check_choices(chosen: NDArray[Any], array: ArraySpace) -> None:
    sizes = np.asarray(array.choices).reshape(array.shape)
    wrong = (chosen < 0) | (chosen >= sizes)
    if wrong.any():
        at = tuple(int(n) for n in np.argwhere(wrong)[0])
        size = int(np.broadcast_to(sizes, chosen.shape)[at])
        sentence = f"the action of environment {at[0]} is {int(chosen[at])}, expected 0 to {size - 1}"
        raise RemoteProtocolError(sentence, "action")
