"""A run that a thread of this process starts: what an interrupt of its start leaves."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zerobeast.api import started
from zerobeast.common.settings import RunConfig
from zerobeast.launcher.start import RunFlags, Settled
from zerobeast.launcher.supervisor import Ending


class Interrupted(threading.Event):
    """Each wait of the main thread is interrupted, as by Ctrl-C."""

    def wait(self, timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return super().wait(timeout)


def test_two_interrupts_of_a_start_leave_no_run_without_a_handle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig.model_validate({"name": "x", "root": str(tmp_path)})
    goes_on, over, ran = threading.Event(), threading.Event(), threading.Event()

    def run(**_: Any) -> Ending:
        ran.set()
        return Ending(0)

    @contextlib.contextmanager
    def begun(*_: Any, **__: Any) -> Iterator[Any]:
        try:
            assert goes_on.wait(60)  # its environment is checked
            supervisor = SimpleNamespace(run=run, ask=lambda _: None)
            yield SimpleNamespace(config=config, add_all=list, supervisor=lambda: supervisor)
        finally:
            over.set()

    monkeypatch.setattr(started, "begun", begun)
    monkeypatch.setattr(started, "threading", SimpleNamespace(Event=Interrupted, Thread=threading.Thread))
    with pytest.raises(KeyboardInterrupt):
        started.StartedRun(Settled(config, RunFlags(), None, {}), {})
    goes_on.set()
    assert over.wait(60)
    assert not ran.is_set()
