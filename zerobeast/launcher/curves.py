"""How long each hop took, as TensorBoard curves over agent_steps: of all services, which only the launcher sees.

The learner writes its own curves. These stand beside them, in a folder of their own: two writers, two files.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from zerobeast.common.health.hops import HOPS, recent
from zerobeast.launcher.pages import Snapshot

log = logging.getLogger(__name__)

FOLDER = Path("tensorboard", "services")
PERIOD_S = 10.0


class Curves:
    """Writes the mean milliseconds of every hop, every PERIOD_S.

    Args:
      run: folder of the run.
    """

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER
        self._next_at = time.monotonic() + PERIOD_S
        self._writer: Any = None
        self._failed = False

    def update(self, snapshot: Snapshot) -> None:
        """Write a point if one is due and there is something to say. A full disk costs the point, not the run."""
        steps = snapshot.page("learner").get("agent_steps", 0)
        if self._failed or not steps or time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + PERIOD_S
        try:
            self._write(hop_means_ms(snapshot), int(steps))
        except OSError as error:
            self._failed = True
            log.warning("%s: no curves of the hops: %s", self._folder, error.strerror or error)

    def close(self) -> None:
        """Write what is buffered."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, values: dict[str, float], step: int) -> None:
        # TensorBoard's own writer: torch's would cost the launcher seconds and 200 MB
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer is None:
            self._writer = EventFileWriter(str(self._folder))
        points = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=points)))
        self._writer.flush()


def hop_means_ms(snapshot: Snapshot) -> dict[str, float]:
    """Tag -> mean milliseconds over the last seconds, of every hop that anything passed."""
    means = {}
    for role, hops in HOPS.items():
        pages = [view.page for view in snapshot.services if view.role == role]
        for hop in hops:
            mean_s = recent(pages, hop).mean_s
            if mean_s is not None:
                means[f"hops_ms/{role}.{hop}"] = 1000 * mean_s
    return means
