"""What a script wants to be told of a run while it waits for the run, and what there is to tell in the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerobeast.common.errors import ConfigError
from zerobeast.common.files import evaluations, metrics, run_files
from zerobeast.common.files.episodes import Episodes

if TYPE_CHECKING:
    from zerobeast.api.run import Run

Row = dict[str, Any]  #: a value for each column
Hook = Callable[..., Any] | None
HOOKS = ("on_update", "on_episode", "on_evaluation", "on_checkpoint")


class Callbacks:
    """Functions that are called while `train` or `run.wait` waits, in the thread that waits.

    Give functions, `Callbacks(on_evaluation=report)`, or derive a class that has these methods. What one of them raises
    is raised by `train`, which ends the run first, with a checkpoint, and by `run.wait`, which does not end it.

    Args:
      on_update, on_episode, on_evaluation, on_checkpoint: with the arguments of the methods of these names.
    """

    def __init__(
        self, on_update: Hook = None, on_episode: Hook = None, on_evaluation: Hook = None, on_checkpoint: Hook = None
    ) -> None:
        given = zip(HOOKS, (on_update, on_episode, on_evaluation, on_checkpoint), strict=True)
        vars(self).update({name: hook for name, hook in given if hook})

    def on_update(self, run: Run, row: Row) -> Any:
        """Called with each new row of metrics.csv, one per `learner.log_every_s`: `agent_steps`, `loss`, ..."""

    def on_episode(self, run: Run, episodes: list[Row]) -> Any:
        """Called with all episodes since the last call, as rows of episodes.csv: `return`, `length`, `info/...`."""

    def on_evaluation(self, run: Run, row: Row) -> Any:
        """Called with each new row of evaluations.csv: `agent_steps`, `env`, `mean_return`, `returns`, ..."""

    def on_checkpoint(self, run: Run, path: Path) -> Any:
        """Called after each `learner.checkpoint_every_s` with the path of the newest checkpoint."""


#: what `callbacks` of a call may be: a function is an `on_update`
Given = Callbacks | Callable[["Run", Row], Any] | Sequence["Given"] | None


def each_of(given: Given) -> Iterator[Callbacks]:
    """The callbacks that a caller has given.

    Raises:
      ConfigError: one of them is none.
    """
    if isinstance(given, Callbacks):
        yield given
    elif isinstance(given, list | tuple):
        for one in given:
            yield from each_of(one)
    elif callable(given):
        yield Callbacks(on_update=given)
    elif given is not None:
        raise ConfigError(f"callbacks is {given!r:.100}, expected a function, zerobeast.Callbacks, or a list of these")


class News:
    """What is new in the folder of a run since this was made, for some callbacks."""

    def __init__(self, folder: Path, callbacks: Sequence[Callbacks]) -> None:
        self._folder, self._callbacks = folder, callbacks
        self._steps = metrics.last(folder).get("agent_steps", 0)
        self._rows, self._episodes = metrics.Rows(folder), Episodes(folder, self._steps)
        self._known: set[tuple[int, str]] = set()  #: step and environment of the evaluations so far
        self._changed_at: dict[Path, int] = {}
        self._checkpoint = folder / run_files.CHECKPOINT
        self._has_changed(self._checkpoint)
        list(self._evaluations())

    def tell(self, run: Run) -> None:
        """Call the callbacks for what is new."""
        for row in self._rows.new():
            if (steps := row["agent_steps"] or 0) > self._steps:
                self._steps = steps
                self._call("on_update", run, row)
        if episodes := self._episodes.new():
            self._call("on_episode", run, episodes)
        for evaluation in self._evaluations():
            self._call("on_evaluation", run, evaluation)
        if self._has_changed(self._checkpoint):
            self._call("on_checkpoint", run, self._checkpoint)

    def _call(self, name: str, *arguments: Any) -> None:
        for each in self._callbacks:
            getattr(each, name)(*arguments)

    def _evaluations(self) -> Iterator[Row]:
        """Evaluations that were not there before."""
        if self._has_changed(self._folder / run_files.EVALUATIONS):
            rows, before = evaluations.read(self._folder), self._known
            self._known = {(row["agent_steps"], row["env"]) for row in rows}
            yield from (row for row in rows if (row["agent_steps"], row["env"]) not in before)

    def _has_changed(self, path: Path) -> bool:
        """Whether a file is there that was not, or not with these contents, at the last call."""
        before = self._changed_at.get(path, 0)
        self._changed_at[path] = now = path.stat().st_mtime_ns if path.exists() else 0
        return now not in (before, 0)
