"""Learning curves as a picture.

RUN is the name of a run, its folder, a folder of runs, or a pattern such as 'CartPole-*'. Runs that differ in
their seed alone, or in settings that do not affect learning, are one line: their mean, with its 95 % bootstrap
interval, up to the last step that all of them have. Greedy and sampled evaluations have separate lines. Every algorithm
has one colour and one marker, in every picture. Columns are those of metrics.csv and evaluations.csv.
"""

import argparse
from pathlib import Path

from zerobeast import commands
from zerobeast.common.process.terminal import write
from zerobeast.results.shown import plot


def main(argv: list[str]) -> int:
    """Run `beast plot`. Raises ConfigError if nothing was drawn."""
    parser = commands.parser("beast plot", __doc__)
    add_runs(parser)
    parser.add_argument("--x", default="steps", help="steps, frames, time or a column; with commas: a panel for each")
    parser.add_argument(
        "--smooth", type=commands.positive, default=1, metavar="N", help="draw means of the last N points"
    )
    parser.add_argument("--threshold", type=commands.finite, metavar="R", help="draw a line there")
    parser.add_argument("--title", default="")
    parser.add_argument("--dark", action="store_true", help="on dark paper")
    parser.add_argument("--out", type=Path, default=Path("curves.png"), help=".png, .svg or .pdf; default %(default)s")
    flags, remarks = vars(parser.parse_args(argv)), dict[str, None]()
    plot(*flags.pop("runs"), **flags, say=lambda text: remarks.update({text: None}))
    write("\n".join(remarks))
    return 0


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name runs, and what to show of them."""
    parser.add_argument("runs", nargs="+", metavar="RUN")
    commands.add_root(parser)
    parser.add_argument("--of", metavar="WHAT", help="training, evaluation (default if every run has some) or a column")
    parser.add_argument("--env", default="", metavar="ID", help="whose evaluations, of runs of several environments")
    parser.add_argument("--by-env", action="store_true", help="each environment by itself, if the runs differ in it")
