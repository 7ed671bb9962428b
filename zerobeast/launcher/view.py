"""What a run looks like while it trains: snapshots of pages in, text out. Nothing here waits, reads or keeps state.

`render_screen` is the live view, at most as wide as the terminal and good from 80 columns on; `format_line` is one line
for logs and pipes; `format_summary` is what stays when it is over.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zerobeast.common.health import figures, hops
from zerobeast.common.health.figures import (
    ServiceView,
    format_count,
    format_duration,
    format_hundredths,
    format_ms,
    number,
)
from zerobeast.common.health.service_table import COLUMNS, LEFT_COLUMNS
from zerobeast.common.health.verdict import STARTING_STATE, Verdict, judge, remark
from zerobeast.common.process.roles import EVALUATOR
from zerobeast.common.settings import RunConfig
from zerobeast.launcher.pages import Snapshot

MAX_SERVICES = 12  #: rows of the table; more are counted in a line
SHOWN_COLUMNS = ("service", "state", "uptime", "rate", "waits for", "memory", "CPU")  #: columns
MAX_TROUBLED = 3  #: services that a plain line names
UNTROUBLED_STATES = ("ready", "starting", "draining")  #: states in which it names none
STATE_STYLES = {"ready": "green", "starting": "yellow", "draining": "yellow", "ended": "dim"}


def render_screen(run: RunConfig, snapshot: Snapshot, *, stopping: bool = False) -> RenderableType:
    """The live view."""
    known = figures.format_progress(run.total_steps, snapshot.page("learner"))
    parts: list[RenderableType] = [
        _title(run, stopping=stopping),
        _progress(known, figures.done_share(run.total_steps, snapshot.page("learner"))),
        _figures(known, snapshot),
        _services(snapshot.services[:MAX_SERVICES]),
    ]
    if (hidden := len(snapshot.services) - MAX_SERVICES) > 0:
        parts.append(Text(f"and {hidden} more", style="dim"))
    if sentence := _verdict(snapshot, stopping=stopping):
        parts.append(Text(sentence, style="bold"))
    parts += [Text(warning, style="yellow", no_wrap=True, overflow="ellipsis") for warning in snapshot.warnings]
    return Group(*parts)


def format_line(run: RunConfig, snapshot: Snapshot, *, stopping: bool = False, full: bool = False) -> str:
    """One line: how far the run is, how well it does, and what is wrong; if `full`, all figures and what limits it."""
    learner, evaluated = snapshot.page("learner"), figures.format_evaluations(snapshot.page(EVALUATOR))
    if any(view.role == "learner" and view.code == 0 for view in snapshot.services):
        evaluates = any(view.role == EVALUATOR and view.code is None for view in snapshot.services)
        return " | ".join(filter(None, ["trained" + ", the last policies are evaluated" * evaluates, evaluated]))
    known = figures.format_progress(run.total_steps, learner) if learner else {}
    shown = (
        [*known.values(), *_flow(snapshot)]
        if full
        else [known[name] for name in figures.FIRST_FIGURES if name in known]
    )
    said = _verdict(snapshot, judge if full else remark, stopping=stopping)
    if full or said.startswith(STARTING_STATE):  # an evaluator may start while the run trains
        said = said.partition(":")[0] if full or not number(learner, "agent_steps_per_s") else ""
    states = {view.name: figures.state_of(view) for view in snapshot.services}
    troubled = [f"{name} {state}" for name, state in states.items() if state not in UNTROUBLED_STATES][:MAX_TROUBLED]
    if stopping or (said and not full):
        troubled = []  # which are what it says
    parts = [*shown, evaluated, said if known else STARTING_STATE, *troubled, "stopping" * stopping]
    return " | ".join(filter(None, parts))


def format_summary(run: RunConfig, learner: Mapping[str, Any], seconds: float, *, finished: bool) -> str:
    """One sentence about a run that has ended, from the learner's last page and the seconds since its start."""
    steps = number(learner, "agent_steps") or (run.total_steps if finished else None)
    mean, many = number(learner, "mean_return_100"), _recent(learner)
    of = f"the last {many} episode{'s' * (many != 1)}"
    result = "no episode ended yet" if mean is None else f"mean return of {of} {mean:.2f}"
    verb = "trained" if finished else "stopped after"
    return f"{run.name}: {verb} {format_count(steps)} agent steps, {result}, in {format_duration(seconds)}"


def _recent(learner: Mapping[str, Any]) -> int:
    """How many episodes a mean return is of."""
    return int(min(100, number(learner, "episodes") or 100))


def _verdict(snapshot: Snapshot, judged: Callable[..., Verdict | None] = judge, *, stopping: bool) -> str:
    """What limits the run; empty while it ends, since the launcher prints the reason."""
    ending = stopping or any(view.code is not None for view in snapshot.services)
    verdict = None if ending else judged(snapshot.services)
    return verdict.sentence if verdict else ""


def _flow(snapshot: Snapshot) -> list[str]:
    """How full the broker's batches and the learner's queue are."""
    return [figures.format_load(ServiceView(role, role, snapshot.page(role))) for role in ("broker", "learner")]


def _title(run: RunConfig, *, stopping: bool) -> Text:
    title = Text(run.name, style="bold", no_wrap=True, overflow="ellipsis")
    title.append(f"  {run.env.id}, {run.section}", style="not bold dim")
    return title.append("  stopping", style="yellow") if stopping else title


def _progress(known: Mapping[str, str], share: float | None) -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True)
    grid.add_row(ProgressBar(total=1.0, completed=share or 0.0), f"{known['steps']}  {known['done']}")
    return grid


def _figures(known: Mapping[str, str], snapshot: Snapshot) -> Table:
    learner = snapshot.page("learner")
    history, last = learner.get("return_history"), _recent(learner)
    returns = Text(format_hundredths(number(learner, "mean_return_100")), style="bold")
    returns.append(
        f" mean of the last {last} of {format_count(number(learner, 'episodes'))} episodes  ", style="not bold"
    )
    returns.append(figures.sparkline(history) if isinstance(history, list) else "", style="not bold cyan")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_row("speed", known["speed"])
    grid.add_row("return", returns)
    if isinstance(by_task := learner.get("mean_return_100_by_task"), dict) and by_task:
        grid.add_row("of each", ", ".join(f"{task} {format_hundredths(number(by_task, task))}" for task in by_task))
    if evaluated := figures.format_evaluations(snapshot.page(EVALUATOR)):
        grid.add_row("evaluated", evaluated)
    grid.add_row("policy", ", ".join(known[name] for name in ("losses", "lag", "updates") if name in known))
    grid.add_row("flow", "inference {} rows, learner {} rollouts".format(*_flow(snapshot)))
    grid.add_row("times", _times(snapshot))
    return grid


def _times(snapshot: Snapshot) -> str:
    """Mean times over the last seconds: of the parts of a step, and of an update."""
    pages = [view.page for view in snapshot.services]
    wires = hops.wires(pages)
    names = {"env": "env_step", "forward": "forward", "wire": "", "update": "update", "wait": "learner_wait"}
    times = {text: hops.merge_recent(pages, name).mean_s for text, name in names.items()}
    times["wire"] = sum(wires.values()) if wires else None
    return ", ".join(f"{text} {format_ms(seconds)}" for text, seconds in times.items())


def _services(services: Sequence[ServiceView]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for heading in SHOWN_COLUMNS:
        table.add_column(heading, justify="left" if heading in LEFT_COLUMNS else "right", no_wrap=True)
    for view in services:
        styles = {"state": STATE_STYLES.get(figures.state_of(view), "red")}
        table.add_row(*(Text(COLUMNS[heading](view), styles.get(heading, "")) for heading in SHOWN_COLUMNS))
    return table
