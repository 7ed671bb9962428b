"""What a script wants to be told of a run while it waits for the run, and what there is to tell in the run's folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from zerobeast.common.errors import ConfigError
from zerobeast.common.files import evaluations, metrics, run_files
from zerobeast.common.files.episodes import Episodes

if TYPE_CHECKING:
    from zerobeast.api.run import Run

Row = dict[str, Any]  #: a value for each column


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
    """

    on_update: Callable[[Run, Row], Any] | None = None
    on_episode: Callable[[Run, list[Row]], Any] | None = None
    on_evaluation: Callable[[Run, Row], Any] | None = None
    on_checkpoint: Callable[[Run, Path], Any] | None = None


One = Callbacks | Callable[["Run", Row], Any]  #: a function is an `on_update`
Given = One | Sequence[One] | None  #: what `callbacks` of a call may be


def each_of(given: Given) -> Iterator[Callbacks]:
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


class News:
    """What is new in the folder of a run since this was made, for some callbacks."""

    def __init__(self, folder: Path, callbacks: Sequence[Callbacks]) -> None:
        self._folder, self._callbacks = folder, callbacks
        self._told = _place(last := metrics.last(folder))
        self._rows, self._episodes = metrics.Rows(folder), Episodes(folder, last.get("agent_steps", 0))
        self._known: set[tuple[Any, ...]] = set()  #: keys of the evaluations so far
        self._changed_at: dict[Path, int] = {}
        self._checkpoint = folder / run_files.CHECKPOINT
        self._has_changed(self._checkpoint)
        list(self._evaluations())

    def tell(self, run: Run) -> None:
        """Call the callbacks for what is new."""
        for row in self._rows.new():
            place = _place(row)
            if row["agent_steps"] and place > self._told:  # a table that is written anew is read again as a whole
                self._told = place
                self._call("on_update", run, row)
        if episodes := self._episodes.new():
            self._call("on_episode", run, episodes)
        for evaluation in self._evaluations():
            self._call("on_evaluation", run, evaluation)
        if self._has_changed(self._checkpoint):
            self._call("on_checkpoint", run, self._checkpoint)

    def _call(self, name: str, *arguments: Any) -> None:
        for each in self._callbacks:
            if function := getattr(each, name):
                function(*arguments)

    def _evaluations(self) -> Iterator[Row]:
        """Evaluations that were not there before."""
        if self._has_changed(self._folder / run_files.EVALUATIONS):
            rows, before = evaluations.read(self._folder), self._known
            self._known = {*map(evaluations.key, rows)}
            yield from (row for row in rows if evaluations.key(row) not in before)

    def _has_changed(self, path: Path) -> bool:
        """Whether a file is there that was not, or not with these contents, at the last call."""
        before = self._changed_at.get(path, 0)
        self._changed_at[path] = now = path.stat().st_mtime_ns if path.exists() else 0
        return now not in (before, 0)


def _place(row: Mapping[str, Any]) -> tuple[float, float]:
    """Where a row of metrics stands: by agent steps, and of equal ones by time."""
    return row.get("agent_steps") or 0, row.get("elapsed_s") or 0
