"""Fixtures that fail the test that leaks, not the one that runs after it."""

import gc
import logging
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers import free_port
from zerobeast.common.plugins import start_folder
from zerobeast.common.transport import Context

TESTS = Path(__file__).parent

# on a busy machine a draw may take long, which says nothing about a property
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

gc.disable()  # until all is imported and collected, which stays


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """From now on look for garbage, though not among modules and tests: that would take a sixth of the time."""
    yield
    gc.freeze()
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Let processes of tests import these, leave the user's state alone, and take signals as a foreground job does.

    `nohup` and `&` leave them ignored, which every child would inherit.
    """
    if not hasattr(config, "workerinput"):  # a worker of xdist inherits it
        state = tempfile.TemporaryDirectory(prefix="zerobeast-state-")
        config.add_cleanup(state.cleanup)
        os.environ["XDG_STATE_HOME"] = state.name
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    path = os.environ.get("PYTHONPATH")  # services of tests can be modules of theirs
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (path, str(TESTS.parent))))


@pytest.fixture(autouse=True)
def _each_test_is_like_a_process_of_its_own() -> Iterator[None]:
    """Undo what a command that was called in this process has set for its children, its log and its folder."""
    start_folder.cache_clear()
    yield
    os.environ.pop("PYTHONSAFEPATH", None)
    logging.getLogger().setLevel(logging.WARNING)


@pytest.fixture
def context() -> Iterator[Context]:
    """A ZeroMQ context that must be able to terminate, i.e. every socket was closed."""
    context = Context()
    yield context
    closer = threading.Thread(target=context.term, daemon=True)
    closer.start()
    closer.join(timeout=60)
    assert not closer.is_alive(), "a socket was left open"


@pytest.fixture(params=["ipc", "tcp"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An endpoint of each transport."""
    return f"ipc://{tmp_path}/s" if request.param == "ipc" else f"tcp://127.0.0.1:{free_port()}"
