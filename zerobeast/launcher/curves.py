"""TensorBoard curves of how long each hop took, over agent_steps, for all services: only the launcher reads all pages.

The learner writes its own curves. These go beside them, in a folder of their own: two writers, two files.
"""

import time
from pathlib import Path

from zerobeast.common.files import run_files
from zerobeast.common.files.event_file import EventFile
from zerobeast.common.health.hops import HOPS, merge_recent
from zerobeast.launcher.pages import Snapshot

PERIOD_S = 10.0


class Curves:
    """Writes the mean milliseconds of every hop, every PERIOD_S, into the folder of a run."""

    def __init__(self, run: Path) -> None:
        self._folder = run / run_files.TENSORBOARD_SERVICES
        self._next_at = time.monotonic() + PERIOD_S
        self._file: EventFile | None = None

    def update(self, snapshot: Snapshot) -> None:
        """Write a point if one is due and there are times to plot. A full disk costs the point, not the run."""
        steps = snapshot.page("learner").get("agent_steps", 0)
        if not steps or time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + PERIOD_S
        try:
            self._file = self._file or EventFile(self._folder, int(steps) - 1)
            self._file.write(hop_means_ms(snapshot), int(steps))
        except OSError as error:
            run_files.warn_once("%s: no curves of the hops: %s", self._folder, error.strerror or error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def hop_means_ms(snapshot: Snapshot) -> dict[str, float]:
    """Tag -> mean milliseconds over the last seconds, for every hop that anything passed."""
    pages = {role: [view.page for view in snapshot.services if view.role == role] for role in HOPS}
    means = {f"{role}.{hop}": merge_recent(pages[role], hop).mean_s for role, hops in HOPS.items() for hop in hops}
    return {f"hops_ms/{name}": 1000 * mean_s for name, mean_s in means.items() if mean_s is not None}
