"""Compare the results of runs in a table.

RUN is the name of a run, its folder, a folder of runs, or a pattern such as 'CartPole-*'. Runs that differ only in
their seed, or in settings that do not affect learning, share a row: their number n, and the mean and interquartile mean
(IQM) of their last values, each with a 95 % bootstrap interval. Greedy and sampled evaluations have separate tables.
With --threshold, a row also has the number of runs that reached it, and the median agent steps and time until then;
runs that never reached it count as the slowest. Returns in Atari games are also human-normalised. The columns of
metrics.csv and evaluations.csv are available.
"""

import json
import sys
from collections.abc import Sequence

from zerobeast import commands
from zerobeast.cli.plot import add_runs
from zerobeast.common.process.terminal import write
from zerobeast.results import curves
from zerobeast.results.comparison import Row, markdown
from zerobeast.results.reports import compare_groups, select_runs
from zerobeast.results.run_results import SavedRun


def main(argv: list[str]) -> int:
    """Run `beast compare`. Raises ConfigError if the runs cannot be compared."""
    parser = commands.make_parser("beast compare", __doc__)
    add_runs(parser)
    parser.add_argument(
        "--threshold", type=commands.parse_finite, metavar="R", help="also show when the runs reached this value"
    )
    parser.add_argument(
        "--at", type=commands.parse_positive, metavar="STEPS", help="use the values after this many agent steps"
    )
    parser.add_argument("--each", action="store_true", help="one row per run")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    flags, remarks = vars(parser.parse_args(argv)), list[str]()
    as_json, names = flags.pop("json"), flags.pop("runs")
    runs, of = select_runs(names, flags.pop("root"), flags.pop("of"), flags["env"], remarks.append)
    rows = compare_groups(runs, of, **flags, say=remarks.append)
    text = json.dumps(rows, indent=1) + "\n" if as_json else _format_tables(rows, of, runs)
    write(text, end="")
    write("".join(f"{remark}\n" for remark in remarks), sys.stderr, end="")
    return 0


def _format_tables(rows: Sequence[Row], of: str, runs: Sequence[SavedRun]) -> str:
    """Markdown, with a table for each kind of actions."""
    kinds = {row.get("actions"): [own for own in rows if own.get("actions") == row.get("actions")] for row in rows}
    made = {kind: curves.ALL_ROWS if kind is None else {"actions": kind} for kind in kinds}
    return "\n".join(markdown(own, curves.describe_meaning(of, runs, made[kind])) for kind, own in kinds.items())
