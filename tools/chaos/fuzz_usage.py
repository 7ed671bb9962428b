"""What a service under attack takes up, and how well it still answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple, Self

from zerobeast.common.errors import BeastError
from zerobeast.launcher.child import Child

LOOK_PERIOD_S = 0.5


class ProcessUsage(NamedTuple):
    """One process at one moment."""

    rss_bytes: int
    files: int  #: open
    log_bytes: int

    @classmethod
    def of(cls, child: Child) -> Self:
        """Look at a process. Raises BeastError if it does not answer."""
        if not (page := child.page()):
            raise BeastError(f"{child.spec.name} shows no health page")
        return cls(page["memory_bytes"], page["open_files"], child.spec.log.stat().st_size)


class AnswerWatch:
    """Looks at the pages of services until it is left."""

    def __init__(self, children: Sequence[Child]) -> None:
        self.loop_age_s = {child.spec.name: 0.0 for child in children}  #: the worst that a page has shown
        self.silence_s = dict(self.loop_age_s)  #: the longest without a page
        self._children = children
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        seen_at = dict.fromkeys(self.silence_s, time.monotonic())
        while not self._over.wait(LOOK_PERIOD_S):
            for child in self._children:
                name, page, now = child.spec.name, child.page(), time.monotonic()
                self.silence_s[name] = max(self.silence_s[name], now - seen_at[name])
                if page:
                    seen_at[name] = now
                    self.loop_age_s[name] = max(self.loop_age_s[name], page["loop_age_s"])
