"""A plug-in of pytest: how long each test that passed took, and which lines it ran, if coverage measures contexts."""

import json
import os
from pathlib import Path

import pytest

FILE = "ZEROBEAST_DURATIONS"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """With xdist the controller gets the reports of all workers, which have no plug-ins of the command line."""
    if report.when == "call" and report.passed and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, report.duration]) + "\n")
