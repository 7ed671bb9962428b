"""The clock of every runner: lets training warm up, measures it, and prints one line of JSON.

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
      clock: returns monotonic seconds.
    """

    def __init__(self, warmup_s: float, seconds: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._waits = (0.0, warmup_s, seconds)
        self._clock = clock
        self._marks: list[tuple[float, int]] = []  #: (seconds, agent steps): the first update, then start and end

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
        if agent_steps > 0 and len(self._marks) < len(self._waits):
            now = self._clock()
            if now - (self._marks[-1][0] if self._marks else now) >= self._waits[len(self._marks)]:
                self._marks.append((now, agent_steps))
        return len(self._marks) == len(self._waits)

    def report(self, version: str) -> None:
        """Print the measurement as one line of JSON."""
        _, (start, before), (end, after) = self._marks
        measured = {"agent_steps": after - before, "seconds": round(end - start, 3), "version": version}
        sys.stdout.write(f"\n{json.dumps(measured)}\n")
        sys.stdout.flush()
