"""Describe this installation and this machine, and train CartPole for five seconds: what a bug report needs.

It takes about half a minute, most of it to start the run.

A line that begins with `warning` names what is likely to trouble a run.

Exit code: 0 the run has trained; 1 it has not.
"""

import json

from zerobeast import commands
from zerobeast.common.process.terminal import write
from zerobeast.diagnosis.facts import Facts, describe_installation, describe_machine
from zerobeast.diagnosis.trial import try_run
from zerobeast.diagnosis.troubles import find_troubles

SECTIONS = {"installation": describe_installation, "machine": describe_machine, "run": try_run}


def main(argv: list[str]) -> int:
    """Run `beast doctor`."""
    parser = commands.make_parser("beast doctor", __doc__)
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of lines")
    flags = parser.parse_args(argv)
    show = (lambda *_lines: None) if flags.json else write
    report: dict[str, Facts] = {}
    for section, describe in SECTIONS.items():
        show(section)
        report[section] = describe()
        show("\n".join(_lines(report[section])))
    troubles = [*find_troubles(report)]
    for trouble in troubles:
        show(f"warning: {trouble}")
    if flags.json:
        write(json.dumps({**report, "warnings": troubles}, indent=1))
    return int("error" in report["run"])


def _lines(facts: Facts) -> list[str]:
    """A line for each fact."""
    width = max(map(len, facts))
    return [f"  {name:<{width}}  {_text(value)}" for name, value in facts.items()]


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, int):
        return f"{value:,}"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
