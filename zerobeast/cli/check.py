"""Play an environment with random actions for up to 8 seconds, in a separate process, and report problems.

Each finding is a line: `ok` for passed checks and for how observations are read; `warning` for things that a run
accepts but that are rarely intended, such as values outside their Box; and `error`. A run starts with a short version
of this check for custom environments that are new to it. Every setting is a flag here too, such as
--env.kwargs '{"size": 5}', --env.action_mask KEY, --env.leave_out ENTRY.

Exit code: 0 no errors; 1 errors; 2 no such environment.
"""

import os

from zerobeast import commands
from zerobeast.common.config.load import resolve_flags
from zerobeast.common.process.terminal import write
from zerobeast.plan.spaces import fetch_findings


def main(argv: list[str]) -> int:
    """Run `beast check`. Raises ConfigError if there is no such environment."""
    parser = commands.make_parser("beast check", __doc__)
    parser.add_argument("env", metavar="ENV", help="an id, or module:Name or file.py:Name for a custom environment")
    own, settings = parser.parse_known_args(argv)
    found = fetch_findings(resolve_flags([f"--env={own.env}", *settings], os.environ).config)
    for level, sentence in found:
        write(f"{level:7}  {sentence}")
    return int(any(level == "error" for level, _ in found))
