"""What may reach an environment: actions from the network, checked before anything acts on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.wire.specs import ActionSpec


class ActionCheck:
    """The legal actions of one session, where `spec` is of one environment's action."""

    def __init__(self, spec: ActionSpec) -> None:
        self.spec = spec
        if spec.kind == "box":
            self._low, self._high = (np.array(bound, np.float32).reshape(spec.shape) for bound in (spec.low, spec.high))
        else:
            self._sizes = np.array(spec.sizes, np.int64).reshape(spec.shape)

    def legal(self, actions: NDArray[Any]) -> NDArray[Any]:
        """A contiguous copy of `actions` [N, *shape] that every environment accepts.

        Real actions outside their box are clipped: a Gaussian policy cannot help it. A choice outside its range is a
        broken peer, and an emulator that is given one may never answer again.

        Raises:
          RemoteProtocolError: a choice is out of range or a real number is not finite.
        """
        if self.spec.kind == "box":
            if not np.isfinite(actions).all():
                raise RemoteProtocolError("an action is not a finite number", "action")
            clipped: NDArray[Any] = np.clip(actions, self._low, self._high)
            return np.ascontiguousarray(clipped)
        wrong = (actions < 0) | (actions >= self._sizes)
        if wrong.any():
            where = tuple(int(n) for n in np.argwhere(wrong)[0])
            size = int(np.broadcast_to(self._sizes, actions.shape)[where])
            raise RemoteProtocolError(
                f"the action of environment {where[0]} is {int(actions[where])}, expected 0 to {size - 1}", "action"
            )
        return np.array(actions, order="C")
