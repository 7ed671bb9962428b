"""How every process logs: one line per event, on stderr.

12:00:01.250 learner-0 I ready
"""

from __future__ import annotations

import logging


def log_to_stderr(name: str) -> None:
    """Send the log, and Python's warnings with it, to stderr under the name of this process."""
    handler = logging.StreamHandler()
    layout = f"%(asctime)s.%(msecs)03d {name} %(levelname).1s %(message)s"
    handler.setFormatter(logging.Formatter(layout, datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
