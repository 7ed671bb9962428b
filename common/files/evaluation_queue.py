"""The policies of a run that wait for its evaluator, for all that end after it.

The evaluator changes the modification time of their folder while it gets on, so whoever sees the folder sees that.
"""

import contextlib
import logging
import os
from pathlib import Path

from zerobeast.common.files import run_files

log = logging.getLogger(__name__)

STILL_S, STEPS = 600.0, 20  #: without progress: to start an env-server on a busy machine, and that many slow steps
SHOWN_S = 10.0  #: between two signs of progress


class EvaluationQueue:
    """Whether an end has to wait for the evaluator. Time is an argument.

    Args:
      folder: of the run.
      step_timeout_s: `envserver.step_timeout_s`.

    Attributes:
      trouble: why no end waits although policies do, as a sentence; empty otherwise.
    """

    def __init__(self, folder: Path, step_timeout_s: float) -> None:
        self.trouble = ""
        self._folder = folder.absolute() / run_files.TO_EVALUATE  # environments may change this process's folder
        self._still_s = STILL_S + STEPS * step_timeout_s
        self._seen, self._seen_at = -1, 0.0
        self._shown, self._shown_at = (0, 0), -SHOWN_S

    def waits(self, now: float) -> bool:
        """Whether policies wait and the evaluator gets on with them, however long that takes."""
        count, seen = len(run_files.list_checkpoints(self._folder.parent, run_files.TO_EVALUATE)), -1
        with contextlib.suppress(OSError):
            seen = self._folder.stat().st_mtime_ns
        if seen != self._seen or not count:
            self._seen, self._seen_at, self.trouble = seen, now, ""
        elif now - self._seen_at >= self._still_s and not self.trouble:
            self.trouble = f"{count} in {self._folder}: no progress of an evaluator for {self._still_s:g} s"
            log.warning("%s", self.trouble)
        return bool(count) and not self.trouble

    def report_progress(self, progress: tuple[int, int], now: float) -> None:
        """Let others see that the evaluator gets on, if it has more policies or more steps of one behind it."""
        if progress > self._shown and now - self._shown_at >= SHOWN_S:
            self._shown, self._shown_at = progress, now
            with contextlib.suppress(OSError):
                os.utime(self._folder)
