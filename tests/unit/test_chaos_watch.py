"""When a process counts as ready, from the pages of its services."""

from typing import Any

import pytest

from zerobeast.tools.chaos.watch import is_ready

READY: dict[str, Any] = {"role": "broker", "state": "ready"}


def env_server(sessions: int, making: int) -> dict[str, Any]:
    return {"role": "envserver", "state": "ready", "sessions": sessions, "sessions_making": making}


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ([READY], True),
        ([READY | {"state": "draining"}], False),
        ([env_server(0, 0)], True),
        ([READY, env_server(0, 0)], False),
        ([READY, env_server(2, 1)], False),
        ([READY, env_server(2, 0)], True),
        ([READY | {"state": "starting"}, env_server(2, 0)], False),
        ([READY, {"role": "envserver", "state": "starting"}], False),
    ],
)
def test_a_process_is_ready_if_its_services_are_and_a_worker_has_made_its_environments(
    pages: list[dict[str, Any]], expected: bool
) -> None:
    assert is_ready(pages) is expected
