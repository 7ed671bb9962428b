"""A run as an object: what its folder has of it, whoever trains it, and what is to be done with that."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from zerobeast.api.policies import load
from zerobeast.api.python_terms import translate_errors
from zerobeast.api.run_events import Row, RunEvents
from zerobeast.common.config import live, trust
from zerobeast.common.config.layers import leaves
from zerobeast.common.config.load import Request, resolve
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import episodes, evaluations, metrics, requests, run_files
from zerobeast.common.health import figures
from zerobeast.common.health.pages import fetch_announced_page
from zerobeast.common.settings import RunConfig
from zerobeast.launcher import foreign_processes
from zerobeast.plan.run_folder import lock_folder
from zerobeast.results.data_frame import to_data_frame
from zerobeast.results.overview import RUNNING, find_folders, run_state
from zerobeast.results.run_results import load_run

if TYPE_CHECKING:
    from zerobeast.playing.policy import Policy

log = logging.getLogger(__name__)

TURN_S = 0.2  #: how late a callback is
TRIES = 3  #: of a question whether a run of another process goes on
NEWEST_COLUMNS = ("agent_steps_per_s", "episodes", "mean_return_100", "loss", "entropy", "episodes_lost")


class Status(NamedTuple):
    """Where a run is; None: not known yet."""

    state: str  #: starting, training, finishing (the last evaluations are played), done, stopped, failed, unknown
    agent_steps: int
    total_steps: int  #: 0 if the settings of the run cannot be read
    agent_steps_per_s: float | None
    episodes: float | None
    mean_return: float | None  #: of the last 100 episodes, undiscounted and unclipped
    loss: float | None
    entropy: float | None  #: of the policy, in nats, if the algorithm has one
    episodes_lost: float | None  #: because the environment failed in them

    def __str__(self) -> str:
        if not self.total_steps:
            return self.state
        page = dict(zip(NEWEST_COLUMNS, self[3:], strict=True)) | {"agent_steps": self.agent_steps}
        known = figures.format_progress(self.total_steps, page)
        names = [
            name for name in figures.FIRST_FIGURES if name in known and (name != "done" or self.state == "training")
        ]
        return f"{self.state}: {' | '.join(known[name] for name in names)}"


class Run(contextlib.AbstractContextManager["Run"], os.PathLike[str]):
    """A run that exists: one that trains, in this process or in another one, or that has ended.

    `zerobeast.train` and `zerobeast.start` return one of a run that they have started.

    Args:
      name: of the run, such as "x", or "lr/seed-1" of a sweep; its folder; or "latest", which was started last.
      root: the folder of all runs; None: `BEAST_ROOT`, or else `runs`.
      callbacks: what `wait` calls: see `zerobeast.start`.

    Raises:
      ConfigError: there is no such run.

    Attributes:
      folder: has the checkpoint, metrics.csv, TensorBoard events and logs.
      decided: settings, by path, of which a file decides none alone and this process has decided for this run.

    Examples:
      >>> import zerobeast as zb
      >>> run = zb.Run("cart")
      >>> run.name, run.config.env.id
      ('cart', 'CartPole-v1')
      >>> len(run.episodes()) > 10
      True
      >>> run.log(difficulty=3)
    """

    decided: Mapping[str, Any] = MappingProxyType({})

    @translate_errors
    def __init__(
        self,
        name: str | os.PathLike[str] = run_files.LATEST_FILE,
        root: str | os.PathLike[str] | None = None,
        callbacks: CallbacksArgument = None,
    ) -> None:
        self.folder = run_files.find_run(os.fspath(name), run_files.root_of(root))
        told = [*list_callbacks(callbacks)]
        self._news = RunEvents(self.folder, told) if told else None

    def __repr__(self) -> str:
        return f"<Run {self.name!r}, {self.status()}, in {self.folder}>"

    def __fspath__(self) -> str:
        return str(self.folder)

    def __exit__(self, *_error: object) -> None:
        """Leave a run of another process alone."""

    @property
    def name(self) -> str:
        """The name of the run, which is that of its folder."""
        return self.folder.name

    @property
    @translate_errors
    def config(self) -> RunConfig:
        """The settings of the run. Raises ConfigError if its file has values that cannot be read here."""
        file = self.folder / run_files.CONFIG
        request = Request(files=[str(file)]).with_values({**trust.SAFE_VALUES, **self.decided}, "this process")
        return resolve(request, read_only=True).config

    def status(self) -> Status:
        """The newest figures, from the health page of the learner if the run trains now, or else from its folder."""
        now = self._state()
        place = self.folder / run_files.SERVICES / foreign_processes.LEARNER_STATUS
        page = (now == RUNNING and fetch_announced_page(place, remote=False)) or {}
        final = metrics.read_last_row(self.folder)  # a page may be a second old; the last row is the end itself
        newest = {**page, **(final if final.get("agent_steps", 0) >= page.get("agent_steps", 0) else {})}
        steps = int(newest.get("agent_steps") or 0)
        if now == RUNNING:
            now = "finishing" if self._is_over() else "training" if self._trains(page, steps) else "starting"
        return Status(now, steps, self._total, *(figures.number(newest, name) for name in NEWEST_COLUMNS))

    def metrics(self) -> Any:
        """The rows of metrics.csv so far, oldest first, by name of the column; the learner's README describes them.

        Returns:
          a pandas.DataFrame if pandas is installed, or else a list of dicts; None stands for what is not known.
        """
        return to_data_frame(metrics.Rows(self.folder).new())

    def episodes(self) -> Any:
        """The training episodes so far, oldest first: agent_steps, env, return, length, and numbers of the last info.

        Returns:
          as `metrics`. Of a run with more than a million episodes or so, the first are no longer there.
        """
        return to_data_frame(episodes.read_episodes(self.folder))

    def evaluations(self) -> Any:
        """The rows of evaluations.csv so far, one for each policy and environment, oldest first.

        Returns:
          as `metrics`; returns and lengths of the episodes are lists.
        """
        return to_data_frame(evaluations.read_evaluations(self.folder))

    @translate_errors
    def policy(self, which: str | int | None = None, **settings: Any) -> Policy:
        """A policy of the run.

        Args:
          which: "best", or the agent steps of a checkpoint that was kept; None: the newest checkpoint.
          settings: as for `zerobeast.load`.

        Raises: as `zerobeast.load`.
        """
        place = str(self.folder) if which is None else f"{self.folder}:{which}"
        return load(place, **{**self.decided, **settings})

    def log(self, **values: float) -> None:
        """Log numbers of your own beside those of the learner: `run.log(difficulty=3)`.

        They become columns of the next row of metrics.csv, so of `metrics()`, curves of TensorBoard and trackers, and
        what `plot(of="difficulty")` draws. Of several values until then the newest counts; in a run that has ended it
        stands in the last row.

        Raises:
          ConfigError: a value is no finite number, or its name is that of a column of the learner.
        """
        for name, value in values.items():
            if name in self._taken_names() or not requests.NAME.fullmatch(name):
                expected = "letters, digits and _ . / -, and no name that the learner uses"
                raise ConfigError(f"{name!r:.100} cannot be a column: expected {expected}")
            if not requests.is_number(value):
                raise ConfigError(argument=name, value=value, expected="a finite number")
        requests.post_request(self.folder, requests.LOG, {name: float(value) for name, value in values.items()})
        if self._has_ended(0.0):
            self._log_rest()

    @translate_errors
    def set(self, **settings: Any) -> None:
        """Change settings while the run trains: `run.set(ppo={"entropy_cost": 0.001})`.

        The learner does so with its next row of metrics, writes it to config.yaml and to its log, and goes on learning.
        This works for the learning rate and its schedule, the clipping of gradients, coefficients of the loss, and for
        `env.progress`, which `"{progress}"` in `env.options` stands for: a curriculum whose pace a callback decides.
        The error for any other setting lists what this run allows.

        Args:
          settings: by section or by path, `**{"ppo.learning_rate": 1e-4}`.

        Raises:
          ConfigError: the run was stopped, or one of them may not change, or not to this value.
        """
        given = live.check_changes(self.config, dict(leaves(settings)))
        if self._is_over():  # as whenever a callback gets the last row
            log.warning("run %r has taken its last step: %s has no effect", self.name, given)
        elif self._has_ended(0.0):
            raise ConfigError(f"run {self.name!r} has ended; `zerobeast.train` continues it with other settings")
        else:
            requests.post_request(self.folder, requests.SET, given)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, and call the callbacks meanwhile, in this thread.

        Args:
          timeout: seconds; None: as long as it takes.

        Returns:
          Whether it has ended.

        Raises:
          BeastError: a run of this process ended because a service failed.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not (ended := self._has_ended(max(0.0, min(TURN_S, deadline - time.monotonic())))):
            if self._news:
                self._news.tell(self)
            if time.monotonic() >= deadline:
                break
        if ended:
            self._conclude()
        return ended

    def stop(self) -> None:
        """End the run, with a checkpoint; return when all its processes have ended, after 10 s at most.

        Raises:
          ConfigError: the run belongs to another process.
        """
        if not self._has_ended(0.0):
            raise ConfigError(f"run {self.name!r} was started by another process, which has to stop it")

    @property
    def _total(self) -> int:
        """Agent steps of the run in all; 0 if its settings cannot be read."""
        with contextlib.suppress(ConfigError):
            total = load_run(self.folder).settings.get("total_steps")
            return total if isinstance(total, int) else 0
        return 0

    def _is_over(self) -> bool:
        """Whether all steps are trained; evaluations may be to come."""
        return self._total > 0 and metrics.is_over(self.folder, self._total)

    def _has_ended(self, seconds: float) -> bool:
        """Whether the run has ended, or does so within this time; a busy learner may miss a question."""
        time.sleep(seconds)
        return not any(foreign_processes.is_running(self.folder) for _ in range(TRIES))

    def _conclude(self) -> None:
        """Tell what came last."""
        if self._news:
            self._news.tell(self)
        self._log_rest()

    def _log_rest(self) -> None:
        """Write what was logged after the last row of a run that has ended, in that row."""
        from zerobeast.services.learner.recorder import amend

        if not [*(self.folder / run_files.REQUESTS).glob("*.json")]:
            return
        with lock_folder(self.folder):  # which refuses a folder that leads elsewhere
            asked = requests.take_requests(self.folder)[requests.LOG]
            if metrics.read_last_row(self.folder) and (
                logged := requests.select_loggable(self.folder, asked, self._taken_names())
            ):
                amend(self.folder, logged)

    def _taken_names(self) -> Collection[str]:
        """Names that the learner uses in metrics.csv."""
        from zerobeast.services.learner.recorder import COLUMNS

        return {*COLUMNS, *(metrics.read_metrics(self.folder).keys() - requests.read_logged_columns(self.folder))}

    def _state(self) -> str:
        """One of the states of `beast runs`."""
        return run_state(self.folder, finished=self._is_over(), known=self._total > 0)

    def _trains(self, page: Mapping[str, Any], _steps: int) -> bool:
        """Whether a run that is running has begun to train."""
        return bool(page.get("agent_steps"))


@dataclass(frozen=True)
class Callbacks:
    """Functions that are called while `train` or `run.wait` waits, in the thread that waits.

    What one of them raises is raised by `train`, which ends the run first, with a checkpoint, and by `run.wait`, which
    does not end it.

    Args:
      on_update: of the run and each new row of metrics.csv, one per `learner.log_every_s`, more at the beginning:
        `agent_steps`, `loss`, ...
      on_episode: of the run and all episodes since the last call, as rows of episodes.csv: `return`, `length`, ...
      on_evaluation: of the run and each new row of evaluations.csv: `agent_steps`, `env`, `mean_return`, `returns`, ...
      on_checkpoint: of the run and the path of its newest checkpoint, after each `learner.checkpoint_every_s`.

    Examples:
      >>> import zerobeast as zb
      >>> returns = []
      >>> def collect(run, episodes):
      ...     returns.extend(episode["return"] for episode in episodes)
      >>> told = zb.Callbacks(on_episode=collect)
      >>> run = zb.train("CartPole-v1", "ppo", total_steps=2_000, name="told", callbacks=told, progress=False)
      >>> len(returns) == len(run.episodes())
      True
    """

    on_update: Callable[[Run, Row], Any] | None = None
    on_episode: Callable[[Run, list[Row]], Any] | None = None
    on_evaluation: Callable[[Run, Row], Any] | None = None
    on_checkpoint: Callable[[Run, Path], Any] | None = None


CallbackLike = Callbacks | Callable[[Run, Row], Any]  #: a function is an `on_update`
CallbacksArgument = CallbackLike | Sequence[CallbackLike] | None  #: what `callbacks` of a call may be


def list_callbacks(given: CallbacksArgument) -> Iterator[Callbacks]:
    """The callbacks that a caller has given.

    Raises:
      ConfigError: one of them is none.
    """
    for one in given if isinstance(given, list | tuple) else [given] if given is not None else []:
        own: Any = one if type(one) is Callbacks else Callbacks(on_update=cast(Any, one))
        if any(isinstance(each, type) or not callable(each) for each in vars(own).values() if each is not None):
            raise ConfigError(
                argument="callbacks", value=one, expected="a function, Callbacks(on_update=...) or a list"
            )
        yield own


def runs(root: str | os.PathLike[str] | None = None) -> list[Run]:
    """Every run in a folder and in its sweeps, the one that was started last first: finished, interrupted or running.

    Args:
      root: as for `Run`. Raises ConfigError if there is no such folder.

    Examples:
      >>> import zerobeast as zb
      >>> "cart" in [run.name for run in zb.runs()]
      True
    """
    place = run_files.root_of(root)
    places = [place, *(journal.parent for journal in place.glob(f"*/{run_files.SWEEP}"))]
    files = [folder / run_files.CONFIG for each in places for folder in find_folders(each) if run_files.is_run(folder)]
    begun = {file.parent: file.stat().st_mtime for file in files}
    return [Run(folder) for folder in sorted(begun, key=begun.__getitem__, reverse=True)]
