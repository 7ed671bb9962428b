"""What a learner keeps on disk while it trains. A failing disk costs what should have been written, not the run."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import CheckpointError
from zerobeast.services.learner.checkpoint import Checkpoints
from zerobeast.services.learner.recorder import Recorder, Row

log = logging.getLogger(__name__)

NOTHING_WRITTEN: dict[str, Any] = {"checkpoint_age_s": None, "write_errors": 0, "unsaved": ""}  #: the first `report`


class Archive:
    """The checkpoints and metrics of a run, and what is wrong with writing them. Time is an argument.

    Args:
      checkpoints: of the run.
      recorder: of its metrics; the caller closes it.
    """

    def __init__(self, checkpoints: Checkpoints, recorder: Recorder) -> None:
        self._checkpoints, self._recorder = checkpoints, recorder
        self._saved_at: float | None = None
        self._errors = 0
        self._faults: dict[str, str] = {}  #: what cannot be written at present -> why, as a sentence

    def record(self, row: Row, losses: Row, lags: NDArray[np.int64], events: Row) -> None:
        """Append a row of metrics; see `Recorder.write`."""
        self._checkpoints.demand()
        self._note("metrics", self._recorder.write(row, losses, lags, events))

    def save(self, state: dict[str, Any], now: float) -> None:
        """Replace the checkpoint.

        Raises:
          CheckpointError: it cannot be written.
        """
        try:
            self._checkpoints.save(state)
        except CheckpointError as error:
            self._note("checkpoint", str(error))
            raise
        self._note("checkpoint", "")
        self._saved_at = now

    def report(self, now: float) -> dict[str, Any]:
        """For the health page; the age is null until this start has written a checkpoint."""
        return {
            "checkpoint_age_s": None if self._saved_at is None else round(now - self._saved_at, 1),
            "write_errors": self._errors,
            "unsaved": "; ".join(self._faults.values()),
        }

    def _note(self, what: str, fault: str) -> None:
        """Count a failed write; log once that writing fails, and once that it works again."""
        if fault:
            self._errors += 1
            if what not in self._faults:
                log.warning("%s; training goes on, and it is tried again", fault)
            self._faults[what] = fault
        elif self._faults.pop(what, ""):
            log.info("the %s can be written again", what)
