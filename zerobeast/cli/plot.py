"""Learning curves as a picture.

RUN is the name of a run, its folder, a folder of runs, or a pattern such as 'CartPole-*'. Runs whose settings differ in
nothing that decides what is learned, but for the seed, are one line: their mean, with its 95 % bootstrap interval, as
far as the shortest has come. Every algorithm has one colour and one marker, in every picture.
"""

import argparse
import math
import sys
from itertools import compress
from pathlib import Path

from zerobeast import commands
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.process.terminal import write
from zerobeast.common.text import suggestion
from zerobeast.results import curves, picture
from zerobeast.results.groups import Group, by_env, by_level, grouped
from zerobeast.results.picture import Line, Options, Panel
from zerobeast.results.run import SavedRun, read


def main(argv: list[str]) -> int:
    """Run `beast plot`. Raises ConfigError if nothing was drawn."""
    flags = _parser().parse_args(argv)
    picture.refuse_unknown(flags.out)
    runs, of = chosen(flags)
    axes, rows, remarks = flags.x.split(","), list[list[Panel]](), list[str]()

    def has(run: SavedRun, env: str) -> bool:
        return all(len(_curve(run, x, of, env, flags).x) for x in axes)

    for env, own in by_env(runs, asked=flags.by_env).items():
        known = [run for run in own if has(run, flags.env)]
        remarks += [f"left out: {run.name}, which has no {of} yet" for run in own if run not in known]
        if known:
            groups = list(by_level(grouped(known), of, has, flags.env))
            rows.append([_panel(env, x, of, groups, flags, remarks) for x in axes])
    if not rows:
        raise ConfigError(f"nothing to draw: none of {len(runs)} runs has {curves.RETURNS.get(of, of)} yet")
    if len(axes) == 1:
        panels = [row[0] for row in rows]
        rows = [panels[i : i + picture.MAX_IN_A_ROW] for i in range(0, len(panels), picture.MAX_IN_A_ROW)]
    picture.draw(rows, Options(of, flags.smooth, flags.threshold, flags.title, flags.dark), flags.out)
    write("\n".join([*dict.fromkeys(remarks), f"{flags.out}: {of} over {flags.x.replace(',', ' and ')}"]))
    return 0


def _panel(env: str, x: str, of: str, groups: list[Group], flags: argparse.Namespace, remarks: list[str]) -> Panel:
    lines = []
    for group in groups:
        own = [_curve(run, x, of, group.env, flags) for run in group.runs]
        kept = curves.overlapping(own)
        remarks += [
            f"left out: {run.name}, which has no {x} in common with the others of its group"
            for run, keeps in zip(group.runs, kept, strict=True)
            if not keeps
        ]
        drawn = group._replace(runs=[*compress(group.runs, kept)])
        lines.append(Line(drawn, curves.mean_curve([*compress(own, kept)])))
    return Panel(env, x, lines)


def _curve(run: SavedRun, x: str, of: str, env: str, flags: argparse.Namespace) -> curves.Curve:
    return curves.curve(run, x, of, env=env, smooth=flags.smooth)


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser("beast plot", __doc__)
    add_runs(parser)
    parser.add_argument("--x", default="steps", help="steps, frames, time or a column; with commas: a panel for each")
    parser.add_argument("--smooth", type=positive, default=1, metavar="N", help="draw means of the last N points")
    parser.add_argument("--threshold", type=finite, metavar="R", help="draw a line there")
    parser.add_argument("--title", default="")
    parser.add_argument("--dark", action="store_true", help="on dark paper")
    parser.add_argument("--out", type=Path, default=Path("curves.png"), help=".png, .svg or .pdf; default %(default)s")
    return parser


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name runs, and what to show of them."""
    parser.add_argument("runs", nargs="+", metavar="RUN")
    commands.add_root(parser)
    parser.add_argument(
        "--of",
        metavar="WHAT",
        help="training or evaluation, or a column of metrics.csv or evaluations.csv; "
        "default: evaluation if every run has some, else training",
    )
    parser.add_argument("--env", default="", metavar="ID", help="whose evaluations, of runs of several environments")
    parser.add_argument("--by-env", action="store_true", help="each environment by itself, if the runs differ in it")


def chosen(flags: argparse.Namespace) -> tuple[list[SavedRun], str]:
    """The runs that flags name, and what to show of them.

    Raises:
      ConfigError: there is no such run, one of them cannot be read, or none was evaluated in the environment named.
    """
    runs = [read(folder) for folder in run_files.find_all(flags.runs, flags.root)]
    without = [run.name for run in runs if not run.evaluations]
    envs = {str(row.get("env")) for run in runs for row in run.evaluations}
    if flags.env and flags.env not in envs:
        raise ConfigError(f"--env {flags.env!r}: none of the runs was evaluated in it{suggestion(flags.env, envs)}")
    if flags.of is None and 0 < len(without) < len(runs):
        write(f"of training, since {without[0]} has no evaluations; --of evaluation shows the others'", sys.stderr)
    of = flags.of or (curves.TRAINING if without else curves.EVALUATION)
    there = [run for run in runs if run.metrics and of in run.metrics]
    elsewhere = [run for run in runs if run not in there and any(of in row for row in run.evaluations)]
    if there and elsewhere and of not in curves.RETURNS:
        raise ConfigError(
            f"--of {of}: of {there[0].name} it is in metrics.csv, of {elsewhere[0].name} in evaluations.csv alone, and "
            f"these are not the same; expected runs of one kind"
        )
    return runs, of


def finite(text: str) -> float:
    """A number from a flag, neither infinite nor NaN."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r}, expected a finite number")
    return number


def positive(text: str) -> int:
    """A whole number, at least 1, from a flag."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a whole number, at least 1")
    return number
