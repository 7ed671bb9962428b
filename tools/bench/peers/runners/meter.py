"""The clock of every runner: training warms up, is measured, and becomes one line of JSON.

An agent step is one decision of the policy, after frame skip: a fourth of the emulator's frames.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable


class Meter:
    """Turns a growing count of agent steps into a rate.

    Args:
      warmup_s: seconds after the first update before measuring begins.
      seconds: how long to measure.
      clock: seconds that only grow.
    """

    def __init__(self, warmup_s: float, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._warmup_s = warmup_s
        self._seconds = seconds
        self._clock = clock
        self._first: float | None = None
        self._start: tuple[float, int] | None = None
        self._end: tuple[float, int] | None = None

    @classmethod
    def from_flags(cls) -> Meter:
        """The meter that the command line of a runner asks for."""
        parser = argparse.ArgumentParser(allow_abbrev=False)
        parser.add_argument("--warmup", type=float, required=True)
        parser.add_argument("--seconds", type=float, required=True)
        options = parser.parse_args()
        return cls(options.warmup, options.seconds)

    def saw(self, agent_steps: int) -> bool:
        """Note how many agent steps updates have used since the start; returns whether the measurement is over."""
        if self._end is not None:
            return True
        if agent_steps <= 0:
            return False
        now = self._clock()
        self._first = now if self._first is None else self._first
        if self._start is None:
            if now - self._first >= self._warmup_s:
                self._start = now, agent_steps
        elif now - self._start[0] >= self._seconds:
            self._end = now, agent_steps
        return self._end is not None

    def line(self, version: str) -> str:
        """The measurement as one line of JSON."""
        assert self._start is not None, "the measurement has begun"
        assert self._end is not None, "the measurement is over"
        steps, seconds = self._end[1] - self._start[1], self._end[0] - self._start[0]
        return json.dumps({"agent_steps": steps, "seconds": round(seconds, 3), "version": version})

    def report(self, version: str) -> None:
        """Print the line."""
        sys.stdout.write(f"\n{self.line(version)}\n")
        sys.stdout.flush()
