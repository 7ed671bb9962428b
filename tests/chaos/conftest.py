"""The outcome of every fault, in one table at the end of a run of these tests, as in docs/reliability.md."""

import time
from typing import Protocol

import pytest

from zerobeast_tools.chaos import trial_table
from zerobeast_tools.chaos.network_faults import NetworkTrial

TRIAL = "trial"  #: property of a test that holds a trial, and travels from the worker that ran the test


class Note(Protocol):
    """Notes that a fault was caused, and that all was well afterwards.

    Args:
      fault: its row in the table.
      since: time.monotonic() from which recovery counts, if it was waited for and is complete now.
      times: how often it was caused.
      lost: rollouts that were never learned from.
    """

    def __call__(self, fault: str, since: float | None = None, *, times: int = 1, lost: int = 0) -> None: ...


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    def add(fault: str, since: float | None = None, *, times: int = 1, lost: int = 0) -> None:
        recovery_s = None if since is None else time.monotonic() - since
        request.node.user_properties.extend([(TRIAL, (fault, recovery_s, 0, "", lost))] * times)

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    reports = [
        report for part in terminalreporter.stats.values() for report in part if isinstance(report, pytest.TestReport)
    ]
    properties = [entry for report in reports if report.when == "call" for entry in report.user_properties]
    if trials := [NetworkTrial(*values) for name, values in properties if name == TRIAL]:
        terminalreporter.section("faults")
        terminalreporter.write(trial_table.markdown(trial_table.network_rows(trials)))
