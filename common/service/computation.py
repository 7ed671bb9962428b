"""Who has a service's sockets while the thread of its turns computes.

    with service.computing:                      # in the thread of the turns: it uses no socket in here
        ...
    service.computing.meanwhile(answer)          # in another thread: `answer` has the sockets if that lasts

A computation that is short costs two looks at the clock and a lock that is free.
"""

import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

LASTING_S = 1.0  #: peers wait as long for an answer without noticing


class Computation(AbstractContextManager[None]):
    """The computation that a service is in, if any. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = math.inf
        self._lock = threading.Lock()  # with it, what one thread did with a socket is visible to the other

    def __enter__(self) -> None:
        self._since = self._clock()

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._since = math.inf

    @property
    def lasting_s(self) -> float:
        """How long it has lasted, in seconds; 0 up to LASTING_S, and if there is none."""
        seconds = self._clock() - self._since
        return seconds if seconds > LASTING_S else 0.0

    def meanwhile(self, act: Callable[[], object]) -> bool:
        """Call `act` if it lasts.

        Returns:
          Whether `act` has returned something true, to give the computation up: its thread never goes on after it.
        """
        with ExitStack() as held:
            held.enter_context(self._lock)
            if self.lasting_s and act():
                held.pop_all()
                return True
        return False
