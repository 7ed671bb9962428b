"""Training from a script or a notebook: `train` waits for the end, `start` does not.

The services of a run are processes of this machine, as with `beast train`. A thread of the calling process supervises
them. It sets no signal handler, and they end in order if the calling process does, even if it is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import csv
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from zerobeast.api.saved import load
from zerobeast.common.config.call import flags_for
from zerobeast.common.errors import BeastError, ConfigError, PeerLost
from zerobeast.common.files import run_files
from zerobeast.common.health import figures
from zerobeast.common.plugins import refuse_imported
from zerobeast.common.settings.tree import RunConfig
from zerobeast.launcher import run_folder
from zerobeast.launcher.curves import Curves
from zerobeast.launcher.pages import Gatherer
from zerobeast.launcher.start import RunFlags, Settled, begun, judged, settle
from zerobeast.launcher.supervisor import Supervisor

if TYPE_CHECKING:
    from zerobeast.clients.policy import Policy

log = logging.getLogger(__name__)

TURN_S = 0.2  #: how late a callback is
LINE_S, LINES_S = 1.0, 10.0  #: between two lines of progress where one overwrites the other, and elsewhere
ERRORS = {ConfigError.exit_code: ConfigError, PeerLost.exit_code: PeerLost}
Row = dict[str, float | None]  #: of metrics.csv, None where a cell is empty


class Callbacks:
    """What is called while a run is waited for, in the thread that waits. Override what is needed.

    Whatever is raised ends the run in order, with a checkpoint, if it is `train` that waits.
    """

    def on_update(self, run: Run, row: Row) -> None:
        """After updates: a new row of metrics.csv, one per `learner.log_every_s`, with `agent_steps`, `loss`, ..."""

    def on_episode(self, run: Run, row: Row) -> None:
        """After episodes: the same row, if `episodes` has grown since the one before; it has `mean_return_100`."""

    def on_checkpoint(self, run: Run, path: Path) -> None:
        """After a checkpoint, one per `learner.checkpoint_every_s` and one at the end."""


class _OnUpdate(Callbacks):
    def __init__(self, function: Callable[[Run, Row], Any]) -> None:
        self._function = function

    def on_update(self, run: Run, row: Row) -> None:
        self._function(run, row)


class Status(NamedTuple):
    """Where a run is; None: not known yet."""

    state: str  #: starting, training or ended
    agent_steps: int
    total_steps: int
    agent_steps_per_s: float | None
    episodes: int | None
    mean_return: float | None  #: of the last 100 episodes, undiscounted and unclipped

    def __str__(self) -> str:
        rate, episodes = figures.count(self.agent_steps_per_s), figures.count(self.episodes)
        done = f"{self.agent_steps:,}/{self.total_steps:,} agent steps, {rate} steps/s"
        return f"{self.state}, {done}, return {figures.two(self.mean_return)}, {episodes} episodes"


def train(
    env: Any = None, algo: Any = None, total_steps: int | None = None, *, progress: bool = True, **given: Any
) -> Run:
    """Train to the end, with a line of progress. Ctrl-C ends the run in order, with a checkpoint, and is raised.

    Args:
      progress: whether to print that line.
      env, algo, total_steps, **given: as for `start`.

    Returns:
      The run, which has ended.

    Raises:
      ConfigError: nothing was started, for the reason it gives.
      BeastError: a service failed.
    """
    with start(env, algo, total_steps, **given) as run, _Line(shown=progress) as line:
        while not run.wait(TURN_S):
            line.update(run)
        line.update(run, at_once=True)
    return run


def start(
    env: Any = None,
    algo: Any = None,
    total_steps: int | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    name: str | None = None,
    callbacks: Callbacks | Callable[[Run, Row], Any] | None = None,
    **settings: Any,
) -> Run:
    """Start a run and return at once. What is not given is as for `beast train`, whose checks apply.

    Args:
      env: an id, `module:Name`, or a class or function that makes one environment, wrapped or not: at the top level of
        a module, or of the script itself if that starts runs below `if __name__ == "__main__":` alone.
      algo: a name, `module:NAME`, or an `AlgorithmSpec` at the top level of a module.
      total_steps: agent steps of the run in all.
      root: the folder of all runs.
      name: of the run and its folder. A run that exists goes on, unless `fresh=True` moves it aside.
      callbacks: what `wait` and `train` call, or a function that is `Callbacks.on_update`.
      settings: by section, such as `net={"hidden_size": 64}`, or by path, `**{"net.hidden_size": 64}`.

    Raises:
      ConfigError: nothing was started, for the reason it gives.
    """
    refuse_imported("starts a run")
    own = {"env": env, "algo": algo, "total_steps": total_steps, "root": root, "name": name}
    flags = flags_for({**own, **settings})
    settled = settle(flags, os.environ, datetime.now().astimezone(), own=RunFlags, say=log.info)
    if settled.config.local.placement == "serial":
        raise ConfigError("local.placement serial: expected one of several processes; `beast train` has the serial one")
    if callbacks is not None and not isinstance(callbacks, Callbacks):
        callbacks = _OnUpdate(callbacks)
    return Run(settled, callbacks or Callbacks())


class Run:
    """A run that trains, or has; `start` makes it. As a context manager it stops the run when it is left.

    Attributes:
      config: its settings.
      folder: has the checkpoint, metrics.csv, TensorBoard events and logs.
    """

    def __init__(self, settled: Settled[RunFlags], callbacks: Callbacks) -> None:
        self.config: RunConfig = settled.config
        self.folder = self.config.folder.absolute()
        self._callbacks = callbacks
        before = [] if settled.flags.fresh else self.metrics()
        self._last: Row = before[-1] if before else {}
        self._before = self._last.get("agent_steps") or 0
        self._changed = {name: self._changed_at(name) for name in (run_files.METRICS, run_files.CHECKPOINT)}
        self._begun, self._ended = threading.Event(), threading.Event()
        self._pages: Gatherer | None = None
        self._supervisor: Supervisor | None = None
        self._error: BaseException | None = None
        atexit.register(self.stop)
        threading.Thread(target=self._run, args=(settled,), name=self.config.name, daemon=True).start()
        try:
            self._begun.wait()
        except BaseException:
            self.stop()
            raise
        if self._supervisor is None and self._error:
            raise self._error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def status(self) -> Status:
        """The newest figures."""
        page = self._pages.snapshot().page("learner") if self._pages else {}
        final = run_folder.final_figures(self.folder)  # a page may be a second old; the last row is the end itself
        newest = {**page, **(final if final.get("agent_steps", 0) >= page.get("agent_steps", 0) else {})}
        steps = int(newest.get("agent_steps") or 0)
        state = "ended" if self._ended.is_set() else "training" if steps > self._before else "starting"
        rate, episodes = figures.number(page, "agent_steps_per_s"), figures.number(page, "episodes")
        return Status(
            state,
            steps,
            self.config.total_steps,
            rate,
            None if episodes is None else int(episodes),
            figures.number(newest, "mean_return_100"),
        )

    def metrics(self) -> list[Row]:
        """The rows of metrics.csv so far, oldest first, by name of the column; its README says what they are."""
        try:
            with (self.folder / run_files.METRICS).open(newline="", encoding="utf-8") as file:
                rows = [row for row in csv.DictReader(file) if None not in row.values()]  # not one that is half written
        except OSError:
            return []
        return [{name: float(cell) if cell else None for name, cell in row.items()} for row in rows]

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
        if ended and self._error:
            raise self._error
        return ended

    def stop(self) -> None:
        """End the run in order, with a checkpoint; returns once every process has ended, after 10 s at most."""
        try:
            self._end(signal.SIGTERM)
        except KeyboardInterrupt:
            self._end(signal.SIGINT, signal.SIGINT)  # at once
            raise

    def policy(self, **settings: Any) -> Policy:
        """The policy of the newest checkpoint: see `load`."""
        return load(self, **settings)

    def _run(self, settled: Settled[RunFlags]) -> None:
        try:
            with contextlib.ExitStack() as stack:
                fleet = stack.enter_context(begun(settled, os.environ, say=log.info))
                curves = stack.enter_context(contextlib.closing(Curves(self.folder)))
                self._pages = stack.enter_context(Gatherer(fleet.add_all(), curves.update))
                self.config, self._supervisor = fleet.config, Supervisor(fleet.children)
                self._begun.set()
                ending = judged(self._supervisor.run(signals=()), self.config)
            if ending.sentence:
                raise ERRORS.get(ending.code, BeastError)(ending.sentence)
        except BaseException as error:  # which the thread that waits raises
            self._error = error
        finally:
            self._ended.set()
            self._begun.set()
            atexit.unregister(self.stop)

    def _end(self, *signals: int) -> None:
        self._begun.wait()
        for number in signals:
            if self._supervisor is not None:
                self._supervisor.ask(number)
        self._ended.wait()

    def _call_back(self) -> None:
        """Call the callbacks for what is new in the folder."""
        if self._news(run_files.METRICS):
            for row in self.metrics():
                before = self._last
                if (row["agent_steps"] or 0) > (before.get("agent_steps") or 0):
                    self._last = row
                    self._callbacks.on_update(self, row)
                    if (row["episodes"] or 0) > (before.get("episodes") or 0):
                        self._callbacks.on_episode(self, row)
        if self._news(run_files.CHECKPOINT):
            self._callbacks.on_checkpoint(self, self.folder / run_files.CHECKPOINT)

    def _news(self, name: str) -> bool:
        """Whether a file has changed since the last call."""
        before, self._changed[name] = self._changed[name], self._changed_at(name)
        return self._changed[name] not in (before, 0)

    def _changed_at(self, name: str) -> int:
        with contextlib.suppress(OSError):
            return (self.folder / name).stat().st_mtime_ns
        return 0


class _Line:
    """A line of progress: overwritten on terminals and in notebooks, elsewhere repeated now and then."""

    def __init__(self, *, shown: bool) -> None:
        self._shown, self._overwrites = shown, sys.stdout.isatty() or "ipykernel" in sys.modules
        self._due, self._width = 0.0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._width:
            self._write("\n")

    def update(self, run: Run, *, at_once: bool = False) -> None:
        """Show how far a run is, if that is due."""
        now = time.monotonic()
        if not self._shown or (now < self._due and not at_once):
            return
        self._due = now + (LINE_S if self._overwrites else LINES_S)
        text = f"{run.config.name}: {run.status()}"
        self._write(f"\r{text:<{self._width}}" if self._overwrites else f"{text}\n")
        self._width = len(text) if self._overwrites else 0

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            sys.stdout.write(text)
            sys.stdout.flush()
