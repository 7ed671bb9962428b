"""A run that this process has started: a thread supervises its services, which are processes of this machine.

It sets no signal handler, and the services end as on SIGTERM if this process ends, even if it is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Mapping
from typing import Any

from zerobeast.api.python_terms import translate_text
from zerobeast.api.run import CallbacksArgument, Run
from zerobeast.common.config import trust
from zerobeast.common.errors import BeastError, ConfigError, PeerLost
from zerobeast.common.files import metrics
from zerobeast.launcher.curves import Curves
from zerobeast.launcher.pages import Gatherer
from zerobeast.launcher.start import correct_ending, prepare_fleet
from zerobeast.launcher.supervisor import Ending, Supervisor
from zerobeast.launcher.tracker import run_tracker
from zerobeast.plan.resolution import ResolvedRun, RunFlags
from zerobeast.results.overview import RUNNING

log = logging.getLogger(__name__)

ERRORS = {ConfigError.exit_code: ConfigError, PeerLost.exit_code: PeerLost}


def log_remark(line: str) -> None:
    """Log what whoever starts a run should know, in terms of Python: on stderr, unless logging is set up otherwise."""
    log.warning("%s", translate_text(line))


class StartedRun(Run):
    """As a context manager it stops the run when it is left.

    Args:
      resolved: what to run.
      environ: environment variables of its services.
      callbacks: as for `Run`.

    Raises:
      ConfigError: nothing was started, for the reason it gives.

    Attributes:
      ending: how it ended; None before that, and after an error.
    """

    def __init__(
        self, resolved: ResolvedRun[RunFlags], environ: Mapping[str, str], callbacks: CallbacksArgument = None
    ) -> None:
        self.ending: Ending | None = None
        self._owner = os.getpid()
        self._begun, self._stopped, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._supervisor: Supervisor | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(resolved, environ), daemon=True)
        try:
            atexit.register(self.stop)
            self._thread.start()
            self._begun.wait()
            if self._supervisor is None and self._error:
                raise self._error
            super().__init__(self.folder, callbacks=callbacks)
            self._before = metrics.read_last_row(self.folder).get("agent_steps", 0)
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._owner != os.getpid():  # in a fork of this process, which has not the thread
            return
        self._stopped.set()
        if self._thread.ident is None:  # it has not begun, and will start nothing
            return
        try:
            self._begun.wait()
            self.ask(signal.SIGTERM)
            self._thread.join()
        except KeyboardInterrupt:
            self.ask(signal.SIGINT, signal.SIGINT)  # end at once
            if self._supervisor is not None:  # or else the thread starts nothing any more
                self._thread.join()
            raise

    def ask(self, *signals: int) -> None:
        """Have the supervisor act as if these signals had come, and return at once."""
        for number in signals:
            if self._supervisor is not None:
                self._supervisor.ask(number)

    def _has_ended(self, seconds: float) -> bool:
        return self._ended.wait(seconds)

    def _conclude(self) -> None:
        self._thread.join()  # which may hold tensors: a process that ends while they are freed there would crash
        super()._conclude()
        if self._error:
            raise self._error

    def _state(self) -> str:
        return super()._state() if self._ended.is_set() else RUNNING

    def _trains(self, _page: Mapping[str, Any], steps: int) -> bool:
        return steps > self._before

    def _run(self, resolved: ResolvedRun[RunFlags], environ: Mapping[str, str]) -> None:
        try:
            with contextlib.ExitStack() as stack:
                fleet = stack.enter_context(prepare_fleet(resolved, environ, say=log.info, remark=log_remark))
                own = resolved.flags
                stack.enter_context(run_tracker(fleet.config, own.track, own.track_project, environ))
                curves = stack.enter_context(contextlib.closing(Curves(fleet.config.folder.absolute())))
                children = fleet.add_all()
                stack.enter_context(Gatherer(lambda: children, curves.update))
                self.folder = fleet.config.folder.absolute()  # perhaps under another name than was asked for
                self.decided, self._supervisor = trust.user_settings(fleet.config), fleet.supervisor()
                if self._stopped.is_set():  # `stop` sets it before it looks for a supervisor
                    raise BeastError("the run was stopped before it began")
                self._begun.set()
                self.ending = correct_ending(self._supervisor.run(signals=()), fleet.config)
            self._log_rest()  # whatever a callback has logged before it raised
            if self.ending.sentence:
                raise ERRORS.get(self.ending.code, BeastError)(self.ending.sentence)
        except BaseException as error:  # which the thread that waits raises
            self._error = error
        finally:
            self._ended.set()
            self._begun.set()
            atexit.unregister(self.stop)
