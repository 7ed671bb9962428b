"""Checks actions from the network before they reach an environment."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.wire.checks import unfit
from zerobeast.common.wire.spaces import Space, by_array


def legal(actions: NDArray[Any], space: Space) -> NDArray[Any]:
    """A contiguous copy of `actions` [N, *shape] that every environment accepts.

    Real actions outside their box are clipped: a Gaussian policy cannot avoid them. A choice out of range means that
    the peer is broken, and an emulator that gets one may never answer again.

    Raises:
      RemoteProtocolError: a choice is out of range or a real number is not finite.
    """
    copy = np.array(actions, order="C")
    for array, chosen in by_array(space, copy):
        if sentence := unfit(chosen, array):
            raise RemoteProtocolError(sentence, "action")
        if array.kind == "box":
            low, high = (bound.astype(np.float32) for bound in array.bounds)
            chosen[...] = np.clip(chosen, low, high)
    return copy
