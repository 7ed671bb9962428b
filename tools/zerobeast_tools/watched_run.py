"""A run that trains, seen through its health pages alone."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zerobeast.common.errors import BeastError

START_LIMIT_S = 120.0


class WatchedRun(ABC):
    """What is known of a run by its pages: how much it has learned, and whether it trains."""

    folder: Path  #: with its logs

    @abstractmethod
    def pages(self, role: str) -> list[dict[str, Any]]:
        """The health pages of all services of a role that answer."""

    @abstractmethod
    def check(self) -> None:
        """Raise BeastError if a service has ended."""

    def agent_steps(self) -> int:
        """Agent steps that the learner has learned from so far; each of its ranks counts those of all."""
        return max((int(page.get("agent_steps", 0)) for page in self.pages("learner")), default=0)

    def until_it_trains(self) -> None:
        """Wait for the first update.

        Raises:
          BeastError: no update comes, or a service has ended.
        """
        self.wait_for(lambda: self.agent_steps() > 0, f"training did not start; the logs are in {self.folder}")

    def next_count(self) -> dict[str, Any]:
        """The first page of the learner that counts more agent steps than its page now.

        Raises:
          BeastError: there is none, or a service has ended.
        """
        pages: list[dict[str, Any]] = []

        def has_counted() -> bool:
            pages.extend(self.pages("learner")[:1])
            return len(pages) > 1 and pages[-1].get("agent_steps", 0) > pages[0].get("agent_steps", 0)

        self.wait_for(has_counted, f"no more agent steps are learned from; the logs are in {self.folder}")
        return pages[-1]

    def wait_for(self, probe: Callable[[], bool], otherwise: str, limit_s: float = START_LIMIT_S) -> None:
        """Wait until something is true.

        Args:
          probe: returns whether it is true.
          otherwise: the error text if the wait times out.
          limit_s: how long to wait.

        Raises:
          BeastError: the wait timed out, or a service has ended.
        """
        deadline = time.monotonic() + limit_s
        while not probe():
            self.check()
            if time.monotonic() > deadline:
                raise BeastError(f"{otherwise} ({limit_s:.0f} s)")
            time.sleep(0.2)
