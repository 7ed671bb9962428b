"""The resources that a service under attack uses, and how well it still answers."""

from collections.abc import Sequence
from typing import NamedTuple, Self

from zerobeast.common.errors import BeastError
from zerobeast.launcher.child import Child
from zerobeast.launcher.pages import Gatherer, Snapshot


class ProcessUsage(NamedTuple):
    """Resources of one process at one moment."""

    rss_bytes: int
    files: int  #: open
    log_bytes: int

    @classmethod
    def of(cls, child: Child) -> Self:
        """Measure a process. Raises BeastError if it does not answer."""
        if not (page := child.page()):
            raise BeastError(f"{child.spec.name} shows no health page")
        return cls(page["memory_bytes"], page["open_files"], child.spec.log.stat().st_size)


class AnswerWatch(Gatherer):
    """Watches the pages of services until its context is left."""

    def __init__(self, children: Sequence[Child]) -> None:
        super().__init__(lambda: children, self._look)
        self.loop_age_s = {child.spec.name: 0.0 for child in children}  #: the worst that a page has shown
        self.silence_s = dict(self.loop_age_s)  #: the longest without a page

    def _look(self, snapshot: Snapshot) -> None:
        for view in snapshot.services:
            self.silence_s[view.name] = max(self.silence_s[view.name], view.silent_s)
            self.loop_age_s[view.name] = max(self.loop_age_s[view.name], view.page.get("loop_age_s", 0.0))
