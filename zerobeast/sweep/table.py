"""How far the runs of a sweep are, from their folders and the journal."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from zerobeast.common.files.metrics import last
from zerobeast.common.health.figures import count, duration, two
from zerobeast.sweep.journal import Past
from zerobeast.sweep.runner import INTERRUPTED, Current
from zerobeast.sweep.trials import Trial

STYLES = {"done": "green", "failed": "red", "training": "yellow"}


def state(past: Past | None) -> str:
    """Of a run, in a word."""
    if past is None:
        return "waiting"
    if past.ending is None:
        return "training"
    return "done" if past.ending.finished else "interrupted" if past.ending.code in INTERRUPTED else "failed"


def progress(folder: Path, trials: Sequence[Trial], pasts: Mapping[str, Past], current: Mapping[str, Current]) -> str:
    """One line about all, and one about each run that trains now."""
    states = [state(pasts.get(trial.name)) for trial in trials]
    counts = [f"{states.count(each)} {each}" for each in dict.fromkeys(states)]
    lines = [f"{folder.name}: {len(trials)} runs, {', '.join(counts)}"]
    for each in current.values():
        figures = last(folder / each.trial.name)
        steps, mean = figures.get("agent_steps", 0), figures.get("mean_return_100")
        lines.append(f"  {each.trial.name}: {count(steps)} of {count(each.trial.total_steps)}, return {two(mean)}")
    return "\n".join(lines)


def conclusion(folder: Path, trials: Sequence[Trial], pasts: Mapping[str, Past]) -> RenderableType:
    """A table of all runs, as they are now."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for heading in ("run", "state", "agent steps", "return", "time"):
        table.add_column(heading, justify="left" if heading in ("run", "state") else "right", no_wrap=True)
    for trial in trials:
        past, figures = pasts.get(trial.name), last(folder / trial.name)
        cells = [count(figures.get("agent_steps")), two(figures.get("mean_return_100"))]
        word = state(past)
        time = duration(past.seconds) if past else ""
        table.add_row(trial.name, Text(word, STYLES.get(word, "")), *cells, time)
    return table
