"""Plot learning curves.

RUN is the name of a run, its folder, a folder of runs, or a pattern such as 'CartPole-*'. Runs that differ only in
their seed, or in settings that do not affect learning, share a line: their mean with a 95 % bootstrap interval, up to
the last step that all of them reached. Greedy and sampled evaluations have separate lines. An algorithm has the same
colour and marker in every picture. The columns of metrics.csv and evaluations.csv are available.
"""

import argparse
from pathlib import Path

from zerobeast import commands
from zerobeast.common.process.terminal import write
from zerobeast.results.reports import plot


def main(argv: list[str]) -> int:
    """Run `beast plot`. Raises ConfigError if nothing was drawn."""
    parser = commands.make_parser("beast plot", __doc__)
    add_runs(parser)
    parser.add_argument(
        "--x", default="steps", help="steps, frames, time or a column; several, with commas: one panel each"
    )
    parser.add_argument(
        "--smooth", type=commands.parse_positive, default=1, metavar="N", help="moving average over the last N points"
    )
    parser.add_argument(
        "--threshold", type=commands.parse_finite, metavar="R", help="draw a horizontal line at this value"
    )
    parser.add_argument("--title", default="", help="title of the picture")
    parser.add_argument("--dark", action="store_true", help="dark background")
    parser.add_argument(
        "--out", type=Path, default=Path("curves.png"), help="file to write: .png, .svg or .pdf; default %(default)s"
    )
    flags, remarks = vars(parser.parse_args(argv)), dict[str, None]()
    plot(*flags.pop("runs"), **flags, say=lambda text: remarks.update({text: None}))
    write("\n".join(remarks))
    return 0


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name runs, and what to show of them."""
    parser.add_argument("runs", nargs="+", metavar="RUN")
    commands.add_root(parser)
    parser.add_argument(
        "--of", metavar="WHAT", help="training, evaluation (the default if every run has some) or a column"
    )
    parser.add_argument("--env", default="", metavar="ID", help="environment of the evaluations, for runs with several")
    parser.add_argument("--by-env", action="store_true", help="separate the environments, if the runs differ in them")
