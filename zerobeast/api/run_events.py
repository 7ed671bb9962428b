"""What is new in the folder of a run, for functions that a script has given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerobeast.common.files import evaluations, metrics, run_files
from zerobeast.common.files.episodes import Episodes

Row = dict[str, Any]  #: a value for each column


class RunEvents:
    """What is new in the folder of a run since this was made.

    Args:
      folder: of the run.
      callbacks: each has a function of its own, or None, by the names of `zerobeast.Callbacks`.
    """

    def __init__(self, folder: Path, callbacks: Sequence[object]) -> None:
        self._folder, self._callbacks = folder, callbacks
        self._told = _place(last := metrics.read_last_row(folder))
        self._rows, self._episodes = metrics.Rows(folder), Episodes(folder, last.get("agent_steps", 0))
        self._known: set[tuple[Any, ...]] = set()  #: keys of the evaluations so far
        self._changed_at: dict[Path, int] = {}
        self._checkpoint = folder / run_files.CHECKPOINT
        self._has_changed(self._checkpoint)
        list(self._evaluations())

    def tell(self, run: object) -> None:
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
            rows, before = evaluations.read_evaluations(self._folder), self._known
            self._known = {*map(evaluations.evaluation_key, rows)}
            yield from (row for row in rows if evaluations.evaluation_key(row) not in before)

    def _has_changed(self, path: Path) -> bool:
        """Whether a file is there that was not, or not with these contents, at the last call."""
        before = self._changed_at.get(path, 0)
        self._changed_at[path] = now = path.stat().st_mtime_ns if path.exists() else 0
        return now not in (before, 0)


def _place(row: Mapping[str, Any]) -> tuple[float, float]:
    """Where a row of metrics stands: by agent steps, and of equal ones by time."""
    return row.get("agent_steps") or 0, row.get("elapsed_s") or 0
