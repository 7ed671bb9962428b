"""Training from a script or a notebook: `train` waits for the end, `start` does not.

The services of a run are processes of this machine, as with `beast train`. A thread of the calling process supervises
them. It sets no signal handler, and they end in order if the calling process does, even if it is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from zerobeast.api.parent import parent_in
from zerobeast.api.progress import Progress
from zerobeast.api.saved import load
from zerobeast.common.config.flags import flags_for
from zerobeast.common.errors import BeastError, ConfigError, PeerLost
from zerobeast.common.files import metrics, run_files
from zerobeast.common.files.metrics import Row
from zerobeast.common.health import figures
from zerobeast.common.plugins import refuse_imported
from zerobeast.common.settings import RunConfig
from zerobeast.launcher.curves import Curves
from zerobeast.launcher.pages import Gatherer
from zerobeast.launcher.start import RunFlags, Settled, begun, judged, settle
from zerobeast.launcher.supervisor import Ending, Supervisor
from zerobeast.launcher.tracker import tracked

if TYPE_CHECKING:
    from zerobeast.clients.policy import Policy

log = logging.getLogger(__name__)

TURN_S = 0.2  #: how late a callback is
NEWEST = ("agent_steps_per_s", "episodes", "mean_return_100")
ERRORS = {ConfigError.exit_code: ConfigError, PeerLost.exit_code: PeerLost}


@dataclass
class Callbacks:
    """Functions that are called in the thread that waits for a run. If `train` waits, what they raise ends the run."""

    #: with each row of metrics.csv after updates, one per `learner.log_every_s`: `agent_steps`, `loss`, ...
    on_update: Callable[[Run, Row], Any] = lambda _run, _row: None
    #: with the same row if it counts more `episodes` than the one before: `mean_return_100`, ...
    on_episode: Callable[[Run, Row], Any] = lambda _run, _row: None
    #: with its path, after each `learner.checkpoint_every_s`
    on_checkpoint: Callable[[Run, Path], Any] = lambda _run, _path: None


class Status(NamedTuple):
    """Where a run is; None: not known yet."""

    state: str  #: starting, training or ended
    agent_steps: int
    total_steps: int
    agent_steps_per_s: float | None
    episodes: float | None
    mean_return: float | None  #: of the last 100 episodes, undiscounted and unclipped

    def __str__(self) -> str:
        rate, episodes = figures.count(self.agent_steps_per_s), figures.count(self.episodes)
        done = f"{self.agent_steps:,}/{self.total_steps:,} agent steps, {rate} steps/s"
        return f"{self.state}: {done}, return {figures.two(self.mean_return)}, {episodes} episodes"


def train(
    env: Any = None, algo: Any = None, total_steps: int | None = None, *, progress: bool = True, **given: Any
) -> Run:
    """Train to the end, with a line of progress. Ctrl-C ends the run in order, with a checkpoint, and is raised.

    Args:
      progress: whether to print that line, below the name and the folder of the run.
      env, algo, total_steps, **given: as for `start`.

    Returns:
      The run, which has ended.

    Raises:
      ConfigError: nothing was started, for the reason it gives.
      BeastError: a service failed.
    """
    with start(env, algo, total_steps, **given) as run:
        heading = f"{run.config.name} ({run.config.env.id}, {run.config.section}) in {run.folder}"
        with Progress(heading, run.status, wanted=progress) as shown:
            while not run.wait(TURN_S):
                shown.update()
    return run


def start(
    env: Any = None,
    algo: Any = None,
    total_steps: int | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    name: str | None = None,
    from_run: str | os.PathLike[str] | Run | None = None,
    callbacks: Callbacks | Callable[[Run, Row], Any] | None = None,
    **settings: Any,
) -> Run:
    """Start a run and return at once. It has the defaults and checks of `beast train`, and ends when this process does.

    Args:
      env: an id, `module:Name`, or a class or function that makes one environment, wrapped or not: at the top level of
        a module, or of the script itself if that starts runs below `if __name__ == "__main__":` alone.
      algo: a name, `module:NAME`, or an `AlgorithmSpec` at the top level of a module.
      total_steps: agent steps of the run in all.
      root: the folder of all runs.
      name: of the run and its folder. A run that exists goes on, unless `fresh=True` moves it aside.
      from_run: a run whose weights and settings a new one begins with, as for `load`: "x", "x:50000" or "x:best". What
        is given here changes its settings, and its steps do not count.
      callbacks: what `wait` and `train` call, or a function that is `Callbacks.on_update`.
      settings: by section, such as `net={"hidden_size": 64}`, or by path, `**{"net.hidden_size": 64}`; and flags of
        `beast train`, such as `track="trackio"`.

    Raises:
      ConfigError: nothing was started, for the reason it gives.
    """
    refuse_imported("starts a run")
    if not (callbacks is None or callable(callbacks) or isinstance(callbacks, Callbacks)):
        raise ConfigError(f"callbacks is {callbacks!r:.100}, expected a function or zerobeast.Callbacks")
    parent = getattr(from_run, "folder", from_run)
    own = {"env": env, "algo": algo, "total_steps": total_steps, "root": root, "name": name, "from_run": parent}
    flags = flags_for({**own, **settings})
    now = datetime.now().astimezone()
    settled = settle(flags, os.environ, now, own=RunFlags, say=log.info, parent=parent_in(flags))
    if settled.config.local.placement == "serial":
        raise ConfigError("local.placement serial: expected one of several processes; `beast train` has the serial one")
    return Run(settled, Callbacks(callbacks) if callable(callbacks) else callbacks or Callbacks())


class Run(contextlib.AbstractContextManager["Run"]):
    """A run that trains, or has; `start` makes it. As a context manager it stops the run when it is left.

    Attributes:
      config: its settings.
      folder: has the checkpoint, metrics.csv, TensorBoard events and logs.
      ending: how it ended; None before that, and after an error.
    """

    def __init__(
        self, settled: Settled[RunFlags], callbacks: Callbacks, environ: Mapping[str, str] = os.environ
    ) -> None:
        self.config: RunConfig = settled.config
        self.ending: Ending | None = None
        self.folder = self.config.folder.absolute()
        self._callbacks, self._owner = callbacks, os.getpid()
        self._rows = metrics.Rows(self.folder)
        self._last: Row = {} if settled.flags.fresh else next(reversed(self._rows.new()), {})
        self._before = self._last.get("agent_steps") or 0
        self._saved_at = 0
        self._has_saved()
        self._begun, self._ended = threading.Event(), threading.Event()
        self._pages: Gatherer | None = None
        self._supervisor: Supervisor | None = None
        self._error: BaseException | None = None
        atexit.register(self.stop)
        self._thread = threading.Thread(target=self._run, args=(settled, environ), name=self.config.name, daemon=True)
        self._thread.start()
        try:
            self._begun.wait()
        except BaseException:
            self.stop()
            raise
        if self._supervisor is None and self._error:
            raise self._error

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def status(self) -> Status:
        """The newest figures."""
        page = self._pages.snapshot().page("learner") if self._pages else {}
        final = metrics.last(self.folder)  # a page may be a second old; the last row is the end itself
        newest = {**page, **(final if final.get("agent_steps", 0) >= page.get("agent_steps", 0) else {})}
        steps = int(newest.get("agent_steps") or 0)
        state = "ended" if self._ended.is_set() else "training" if steps > self._before else "starting"
        rate, episodes, mean = (figures.number(newest, name) for name in NEWEST)
        return Status(state, steps, self.config.total_steps, rate, episodes, mean)

    def metrics(self) -> list[Row]:
        """The rows of metrics.csv so far, oldest first, by name of the column; its README describes them."""
        return metrics.Rows(self.folder).new()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, and call the callbacks meanwhile, in this thread.

        Args:
          timeout: seconds; None: as long as it takes.

        Returns:
          Whether it has ended.

        Raises:
          BeastError: it ended because a service failed.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        ended = self._ended.is_set()
        while not ended and (left_s := deadline - time.monotonic()) > 0:
            ended = self._ended.wait(min(TURN_S, left_s))
            self._call_back()
        if ended:
            self._thread.join()  # which may hold tensors: a process that ends while they are freed there would crash
        if ended and self._error:
            raise self._error
        return ended

    def stop(self) -> None:
        """End the run in order, with a checkpoint; returns when all its processes have ended, after 10 s at most."""
        if self._owner != os.getpid():  # in a fork of this process, which has not the thread
            return
        self._begun.wait()
        try:
            self.ask(signal.SIGTERM)
            self._thread.join()
        except KeyboardInterrupt:
            self.ask(signal.SIGINT, signal.SIGINT)  # end at once
            self._thread.join()
            raise

    def ask(self, *signals: int) -> None:
        """Act as if these signals had come, and return at once."""
        for number in signals:
            if self._supervisor is not None:
                self._supervisor.ask(number)

    def policy(self, **settings: Any) -> Policy:
        """The policy of the newest checkpoint: see `load`."""
        return load(self, **settings)

    def _run(self, settled: Settled[RunFlags], environ: Mapping[str, str]) -> None:
        try:
            with contextlib.ExitStack() as stack:
                fleet = stack.enter_context(begun(settled, environ, say=log.info))
                own = settled.flags
                stack.enter_context(tracked(fleet.config, own.track, own.track_project, environ))
                curves = stack.enter_context(contextlib.closing(Curves(fleet.config.folder.absolute())))
                children = fleet.add_all()
                self._pages = stack.enter_context(Gatherer(lambda: children, curves.update))
                self.config, self._supervisor = fleet.config, fleet.supervisor()
                self.folder = self.config.folder.absolute()  # another run may have taken its name meanwhile
                self._rows = metrics.Rows(self.folder)
                self._begun.set()
                self.ending = judged(self._supervisor.run(signals=()), self.config)
            if self.ending.sentence:
                raise ERRORS.get(self.ending.code, BeastError)(self.ending.sentence)
        except BaseException as error:  # which the thread that waits raises
            self._error = error
        finally:
            self._ended.set()
            self._begun.set()
            atexit.unregister(self.stop)

    def _call_back(self) -> None:
        """Call the callbacks for what is new in the folder."""
        for row in self._rows.new():
            before, steps = self._last, row["agent_steps"] or 0
            if steps > (before.get("agent_steps") or 0):
                self._last = row
                self._callbacks.on_update(self, row)
                if (row["episodes"] or 0) > (before.get("episodes") or 0):
                    self._callbacks.on_episode(self, row)
        if self._has_saved():
            self._callbacks.on_checkpoint(self, self.folder / run_files.CHECKPOINT)

    def _has_saved(self) -> bool:
        """Whether there is a checkpoint that was not there at the last call."""
        path, before = self.folder / run_files.CHECKPOINT, self._saved_at
        self._saved_at = path.stat().st_mtime_ns if path.exists() else 0
        return self._saved_at not in (before, 0)
