"""What a run leaves to be plotted: metrics.csv and TensorBoard events, both over agent_steps.

One row per `learner.log_every_s`, more at the beginning. The header is that of the first row, and columns that come
later are added; an unknown value is an empty cell, never NaN. A run that continues from a checkpoint first drops the
rows about training that the checkpoint does not contain, and a last line that a crash left incomplete, then appends.
"""

import contextlib
import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import ConfigError
from zerobeast.common.files import metrics, run_files
from zerobeast.common.files.atomic import Journal, explain_os_errors, write_atomically
from zerobeast.common.files.event_file import EventFile
from zerobeast.common.files.regular_files import MAX_TABLE_BYTES, open_regular, read_rest
from zerobeast.common.wire.episodes import Episode

#: column of metrics.csv -> TensorBoard tag ("": only a column); the algorithm's own metrics follow as losses/<name>
COLUMNS = {
    "elapsed_s": "",
    "agent_steps": "",
    "env_frames": "",
    "updates": "charts/updates",
    "optimizer_steps": "charts/optimizer_steps",
    "agent_steps_per_s": "charts/SPS",
    "env_frames_per_s": "charts/FPS",
    "episodes_begun": "charts/episodes_begun",
    "episodes": "charts/episodes",
    "episodes_lost": "charts/episodes_lost",
    "mean_return_100": "charts/episodic_return",
    "mean_length_100": "charts/episodic_length",
    "learning_rate": "charts/learning_rate",
    "loss": "losses/loss",
    "grad_norm": "losses/grad_norm",
    "policy_lag_mean": "perf/policy_lag_mean",
    "policy_lag_max": "perf/policy_lag_max",
    "syncs": "sync/syncs",
    "sync_bytes": "sync/bytes",
    "queue_rows": "perf/queue_rows",
    "waiting_fraction": "perf/waiting_fraction",
    "update_ms": "perf/update_ms",
    "rollout_queue_ms": "perf/rollout_queue_ms",
    "learner_wait_ms": "perf/learner_wait_ms",
    "publish_ms": "perf/publish_ms",
    "nonfinite_updates": "perf/nonfinite_updates",
    "refused": "perf/refused",
    # of algorithms with a pace of their own: `zerobeast.rl.data.pace`
    "samples_per_insert": "perf/samples_per_insert",
    "replay_starved_s": "perf/replay_starved_s",
    "ratio_limited_s": "perf/ratio_limited_s",
}

BEGINNING_S = 30.0  #: in which rows are a tenth of their period apart, but no less than the next number
FASTEST_ROW_S = 0.5
MAX_COLUMNS = 250  #: names that come later are left out
MAX_EPISODES_BYTES = 64 << 20  #: of episodes.csv; then it becomes episodes.1.csv, in place of an earlier one

Value = float | int | None
Row = Mapping[str, Value]
Ended = tuple[int, str, Episode]  #: agent steps of the run, environment, episode


class Record(NamedTuple):
    """What there is to write about a run at one moment."""

    row: Row  #: values of `COLUMNS`, of "info/NAME" and of callers, as they come
    losses: Row  #: the algorithm's metrics by name
    lags: NDArray[np.int64]  #: [n], steps by policy lag since the last record
    events: Row  #: other values by tag, which metrics.csv does not hold
    episodes: Sequence[Ended]  #: that ended since the last record
    lost_to: str = ""  #: the most frequent reason of lost ones so far


class Recorder:
    """Writes a run's metrics.

    Args:
      folder: of the run; it exists.
      agent_steps: where the run stands, 0 at its start.

    Raises:
      ConfigError: the folder cannot be written.
    """

    def __init__(self, folder: Path, agent_steps: int) -> None:
        self._path, self._lost_to = folder / run_files.METRICS, ""
        with explain_os_errors(f"{folder}: the run folder cannot be written"):
            self._header = _trim(self._path, agent_steps)
            self._lines = Journal(self._path)
            self._episodes = EpisodeLog(folder / run_files.EPISODES, agent_steps)
            self._events = EventFile(folder / run_files.TENSORBOARD, agent_steps)

    def write(self, record: Record) -> str:
        """Append a record; a full disk costs the record, not the run.

        Returns:
          Why it is lost, as a sentence; empty if it is not.
        """
        try:
            if record.lost_to != self._lost_to:
                write_atomically(self._path.with_name(run_files.LOST_FILE), record.lost_to, durable=True)
                self._lost_to = record.lost_to
            self._write_csv({**record.row, **record.losses})
            self._episodes.write(record.episodes)
            self._write_events(record)
        except (OSError, ConfigError) as error:
            return f"{self._path.parent}: metrics are lost: {getattr(error, 'strerror', None) or error}"
        return ""

    def close(self) -> None:
        """Close the files."""
        self._lines.close()
        self._episodes.close()
        self._events.close()

    def _write_csv(self, row: Row) -> None:
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        if not self._lines.size:
            self._header = list(row)
            table.writerow(self._header)
        elif len(self._header) < MAX_COLUMNS and (new := [name for name in row if name not in self._header]):
            self._header = _fill(self._path, dict.fromkeys(new))  # an info, or a value of a caller, may come late
            before, self._lines = self._lines, Journal(self._path)
            before.close()
        table.writerow([_cell(row.get(name)) for name in self._header])
        self._lines.write(text.getvalue().encode())

    def _write_events(self, record: Record) -> None:
        tagged = {COLUMNS.get(name, name): value for name, value in record.row.items()}
        tagged |= {**{f"losses/{name}": value for name, value in record.losses.items()}, **record.events}
        scalars = {tag: float(value) for tag, value in tagged.items() if tag and value is not None and _is_known(value)}
        histograms = {"perf/policy_lag": record.lags} if record.lags.any() else {}
        self._events.write(scalars, int(record.row["agent_steps"] or 0), histograms)


def amend(folder: Path, values: Mapping[str, float]) -> None:
    """Write values of callers into the last row of a run that has ended; of TensorBoard's curves, only theirs go on.

    Raises:
      ConfigError: the folder cannot be written, or has no table of metrics.
    """
    path, steps = folder / run_files.METRICS, int(metrics.read_last_row(folder).get("agent_steps", 0))
    with explain_os_errors(f"{folder}: the run folder cannot be written"):
        _trim(path, steps)
        _fill(path, values)
        with contextlib.closing(EventFile(folder / run_files.TENSORBOARD, steps)) as events:
            events.write(values, steps)


class EpisodeLog:
    """Writes episodes.csv, a line for each episode: agent_steps, env, return, length, and infos as JSON."""

    def __init__(self, path: Path, agent_steps: int) -> None:
        self._path = path
        _trim(path, agent_steps)
        self._lines = Journal(path)

    def write(self, episodes: Sequence[Ended]) -> None:
        """Append episodes. Raises OSError if the disk is full: then none of them was written."""
        if self._lines.size > MAX_EPISODES_BYTES:
            if self._path.exists():
                self._path.replace(self._path.with_suffix(".1.csv"))
            full, self._lines = self._lines, Journal(self._path)
            full.close()
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        if not self._lines.size:
            table.writerow(("agent_steps", "env", "return", "length", "infos"))
        for steps, env, (value, length, infos) in episodes:
            table.writerow((steps, env, _cell(value), length, json.dumps(dict(infos)) if infos else ""))
        self._lines.write(text.getvalue().encode())

    def close(self) -> None:
        self._lines.close()


def next_row(now: float, started_at: float, period_s: float) -> float:
    """When the next row is due: sooner at the beginning, so that a run of seconds has a curve."""
    begins = now - started_at <= BEGINNING_S
    return now + (min(period_s, max(FASTEST_ROW_S, period_s / 10)) if begins else period_s)


def events_of(page: dict[str, Any]) -> dict[str, float]:
    """What TensorBoard shows besides the columns, by tag: for each of several environments and each acting process."""
    by_tag = {
        "charts/episodic_return": page["mean_return_100_by_task"],
        **{f"sync/{name}": page[f"{name}_by_acting"] for name in ("syncs", "lag", "divergence")},
    }
    return {f"{tag}/{key}": value for tag, values in by_tag.items() for key, value in values.items()}


def _is_known(value: Value) -> bool:
    return value is not None and math.isfinite(value)


def _cell(value: Value) -> str:
    if not _is_known(value):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _fill(path: Path, values: Row) -> list[str]:
    """Write values into the last row of a table, with new columns, empty elsewhere, if need be. Returns the header."""
    (header, *rows), text = csv.reader(path.read_text(encoding="utf-8").splitlines()), io.StringIO()
    header += [name for name in values if name not in header][: max(0, MAX_COLUMNS - len(header))]
    rows = [row + [""] * (len(header) - len(row)) for row in rows]
    rows[-1] = [_cell(values[name]) if name in values else cell for name, cell in zip(header, rows[-1], strict=True)]
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_atomically(path, text.getvalue(), durable=True)
    return header


def _trim(path: Path, agent_steps: int) -> list[str]:
    """Drop what a run at `agent_steps` did not write, and return the header; empty if no row is left.

    Raises:
      ConfigError: the file is not a table of metrics.
    """
    if not path.exists():
        return []
    with open_regular(path) as file:
        text = read_rest(file, MAX_TABLE_BYTES).decode(errors="replace")
    whole = text[: text.rfind("\n") + 1].splitlines()
    header = next(csv.reader(whole[:1]), [])
    if whole and "agent_steps" not in header:
        raise ConfigError(f"{path}: not a table of metrics: no column 'agent_steps'; move it away")
    kept = [line for line in whole[1:] if _belongs(line, header, agent_steps)]
    write_atomically(path, "".join(f"{line}\n" for line in [*whole[:1], *kept]) if kept else "", durable=True)
    return header if kept else []


def _belongs(line: str, header: list[str], agent_steps: int) -> bool:
    cells = next(csv.reader([line]), [])
    if len(cells) != len(header):
        return False
    cell = cells[header.index("agent_steps")]
    return cell.isdecimal() and int(cell) <= agent_steps
