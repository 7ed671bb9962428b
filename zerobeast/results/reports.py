"""Runs drawn and compared: what `beast plot` and `beast compare` show."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from operator import not_
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.text import suggestion
from zerobeast.results import curves, picture
from zerobeast.results.comparison import Row, curve_until, group_row
from zerobeast.results.curves import Where
from zerobeast.results.groups import Group, group_runs, split_by_level
from zerobeast.results.groups import split_by_env as of_each_env
from zerobeast.results.picture import Line, Options, Panel
from zerobeast.results.run_results import SavedRun, load_run
from zerobeast.results.statistics import TWO_RUNS_NOTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Say = Callable[[str], None]
Names = str | os.PathLike[str]


def ignore_remark(_text: str) -> None:
    """Take a remark and show it to nobody."""


def plot(
    *runs: Names,
    of: str | None = None,
    x: str = "steps",
    env: str = "",
    by_env: bool = False,
    out: Path | str | None = None,
    root: Names | None = None,
    say: Say = ignore_remark,
    **look: Any,
) -> Figure:
    """Draw learning curves, as `beast plot` does: one line, with its interval, for runs that differ in their seed.

    Args:
      runs: names, folders, folders of runs, patterns such as "CartPole-*", or `Run`s.
      of: "training" or "evaluation", or a column of metrics.csv or evaluations.csv; None: evaluation if every run has
        some, else training.
      x: "steps", "frames", "time" or a column; with commas, a panel for each.
      env: whose evaluations, of runs of several environments.
      by_env: each environment by itself, if the runs differ in it.
      out: a file to write, .png, .svg or .pdf; None: none.
      root: the folder of all runs; None: `BEAST_ROOT`, or else `runs`.
      say: takes remarks, such as on runs that are left out.
      look: `smooth=10` draws means of the last 10 points; `threshold=475.0`, `title="..."`, `dark=True`.

    Returns:
      The figure, of matplotlib.

    Raises:
      ConfigError: there is no such run, or there is nothing to draw.

    Examples:
      >>> import zerobeast as zb
      >>> figure = zb.plot("cart", of="training", out="cart.png")
      >>> len(figure.axes)
      1
    """
    if out is not None:
        picture.refuse_unknown(Path(out))
    found, of = select_runs(runs, root, of, env, say)
    options, axes, rows = Options(of, **look), x.split(","), list[list[Panel]]()

    def curve(run: SavedRun, across: str, where: Where) -> curves.Curve:
        return curves.curve(run, across, of, where=where, smooth=options.smooth)

    def has(run: SavedRun, where: Where) -> bool:
        return all(len(curve(run, across, where).x) for across in axes)

    for title, groups in _split_groups(found, of, has, env, by_env=by_env, say=say):
        rows.append([_panel(title, across, groups, curve, say) for across in axes])
    if not rows:
        raise ConfigError(f"nothing to draw: none of {len(found)} runs has {curves.RETURNS.get(of, of)} yet")
    if len(axes) == 1:
        panels = [row[0] for row in rows]
        rows = [panels[i : i + picture.MAX_IN_A_ROW] for i in range(0, len(panels), picture.MAX_IN_A_ROW)]
    figure = picture.draw_panels(rows, options)
    if out is not None:
        picture.save_figure(figure, Path(out))
        say(f"{out}: {of} over {x.replace(',', ' and ')}")
    return figure


def _panel(title: str, x: str, groups: Sequence[Group], curve: Callable[..., curves.Curve], say: Say) -> Panel:
    lines = []
    for group in groups:
        own = [curve(run, x, group.where) for run in group.runs]
        kept = curves.find_overlapping(own)
        for run in compress(group.runs, map(not_, kept)):
            say(f"left out: {run.name}, which has no {x} in common with the others of its group")
        drawn = group._replace(runs=[*compress(group.runs, kept)])
        lines.append(Line(drawn, curves.mean_curve([*compress(own, kept)])))
    return Panel(title, x, lines)


def compare_groups(
    runs: Sequence[SavedRun], of: str, *, env: str, by_env: bool, each: bool, say: Say, **how: Any
) -> list[Row]:
    """The row of each group of runs: see `zerobeast.compare`; `how`: `at` and `threshold` of `comparison.group_row`.

    Raises:
      ConfigError: there is nothing to compare.
    """

    def has(run: SavedRun, where: Where) -> bool:
        return len(curve_until(run, of, where, at=how["at"]).x) > 0

    when = "yet" if how["at"] is None else "until then"
    apart = _split_groups(runs, of, has, env, by_env=by_env, say=say, each=each, when=when)
    if not (rows := [group_row(group, of, **how) for _, groups in apart for group in groups]):
        raise ConfigError(f"nothing to compare: none of {len(runs)} runs has {curves.RETURNS.get(of, of)} yet")
    if any(row["n"] == 2 for row in rows):
        say(f"95 % interval {TWO_RUNS_NOTE}")
    return rows


def _split_groups(
    runs: Sequence[SavedRun],
    of: str,
    has: Callable[[SavedRun, Where], bool],
    env: str,
    *,
    by_env: bool,
    say: Say,
    each: bool = False,
    when: str = "yet",
) -> Iterator[tuple[str, list[Group]]]:
    """The groups of each environment that have something to show."""
    where = {"env": env} if env else curves.ALL_ROWS
    for title, own in of_each_env(runs, asked=by_env).items():
        known = [run for run in own if has(run, where)]
        for run in own:
            if run not in known:
                say(f"left out: {run.name}, which has no {of} {when}")
        if known:
            yield title, list(split_by_level(group_runs(known, each=each), of, has, where))


def select_runs(
    names: Sequence[Names], root: Names | None, of: str | None, env: str, say: Say
) -> tuple[list[SavedRun], str]:
    """The runs of these names, and what to show of them.

    Raises:
      ConfigError: there is no such run, one of them cannot be read, or none was evaluated in the environment named.
    """
    runs = [
        load_run(folder) for folder in run_files.find_runs([os.fspath(name) for name in names], run_files.root_of(root))
    ]
    without = [run.name for run in runs if not run.evaluations]
    envs = {str(row.get("env")) for run in runs for row in run.evaluations}
    if env and env not in envs:
        raise ConfigError(f"env {env!r}: none of the runs was evaluated in it{suggestion(env, envs)}")
    if of is None and 0 < len(without) < len(runs):
        say(f"of training, since {without[0]} has no evaluations; of evaluation shows the others'")
    of = of or (curves.TRAINING if without else curves.EVALUATION)
    there = [run for run in runs if run.metrics and of in run.metrics]
    elsewhere = [run for run in runs if run not in there and any(of in row for row in run.evaluations)]
    if there and elsewhere and of not in curves.RETURNS:
        raise ConfigError(
            f"of {of}: {there[0].name} has it in metrics.csv, {elsewhere[0].name} only in evaluations.csv, and "
            f"these are not the same; expected runs of one kind"
        )
    return runs, of
