"""Describe this installation and this machine, and train CartPole for five seconds: what a bug report needs.

A line that begins with `warning` names what is likely to trouble a run.

Exit code: 0 the run has trained; 1 it has not.
"""

import json

from zerobeast import commands
from zerobeast.common.process.terminal import write
from zerobeast.diagnosis.facts import Facts, describe_installation, describe_machine
from zerobeast.diagnosis.trial import RUN_S, try_run
from zerobeast.diagnosis.troubles import find_troubles


def main(argv: list[str]) -> int:
    """Run `beast doctor`."""
    parser = commands.make_parser("beast doctor", __doc__)
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of lines")
    flags = parser.parse_args(argv)
    report = {"installation": describe_installation(), "machine": describe_machine(), "run": try_run(RUN_S)}
    troubles = [*find_troubles(report)]
    if flags.json:
        write(json.dumps({**report, "warnings": troubles}, indent=1))
    else:
        write("\n".join([*_lines(report), *(f"warning: {trouble}" for trouble in troubles)]))
    return int("error" in report["run"])


def _lines(report: dict[str, Facts]) -> list[str]:
    """A line for each fact, below the name of its section."""
    width = max(len(name) for facts in report.values() for name in facts)
    return [
        line
        for section, facts in report.items()
        for line in (section, *(f"  {name:<{width}}  {_text(value)}" for name, value in facts.items()))
    ]


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, int):
        return f"{value:,}"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
