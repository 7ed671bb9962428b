"""Play an environment at random for up to 8 seconds, in a process of its own, and say what is wrong with it.

A line for each finding: what is ok, and how observations are read; warnings about what a run accepts and is seldom
meant, such as values outside of their Box; and errors. A run begins with a short check of environments of your own that
it does not know yet. Every setting is a flag here too, such as --env.kwargs '{"size": 5}', --env.action_mask KEY,
--env.leave_out ENTRY.

Exit code: 0 no errors; 1 errors; 2 there is no such environment.
"""

import os

from zerobeast import commands
from zerobeast.common.config.load import gather
from zerobeast.common.process.terminal import write
from zerobeast.plan.spaces import findings


def main(argv: list[str]) -> int:
    """Run `beast check`. Raises ConfigError if there is no such environment."""
    parser = commands.parser("beast check", __doc__)
    parser.add_argument("env", metavar="ENV", help="module:Name or file.py:Name of your own, or an id")
    own, settings = parser.parse_known_args(argv)
    found = findings(gather([f"--env={own.env}", *settings], os.environ).config)
    for level, sentence in found:
        write(f"{level:7}  {sentence}")
    return int(any(level == "error" for level, _ in found))
