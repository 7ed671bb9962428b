"""What every fault came to, in one table at the end of a run of these tests, as in docs/reliability.md."""

import time
from typing import Protocol

import pytest

from zerobeast.tools.chaos.network import summary, table
from zerobeast.tools.chaos.network_faults import Trial

TRIALS = pytest.StashKey[list[Trial]]()


class Note(Protocol):
    """Notes that a fault was caused, and that all was well afterwards.

    Args:
      fault: its row in the table.
      since: of time.monotonic, where recovery was waited for and has just come.
      times: how often.
      lost: rollouts that were never learned from.
    """

    def __call__(self, fault: str, since: float | None = None, *, times: int = 1, lost: int = 0) -> None: ...


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    trials = request.config.stash.setdefault(TRIALS, [])

    def add(fault: str, since: float | None = None, *, times: int = 1, lost: int = 0) -> None:
        recovery_s = None if since is None else time.monotonic() - since
        trials.extend([Trial(fault, recovery_s, 0, "", lost)] * times)

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table."""
    if trials := config.stash.get(TRIALS, []):
        terminalreporter.section("faults")
        terminalreporter.write(table(summary(trials)))
