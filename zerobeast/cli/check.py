"""`beast check ENV`: play an environment at random for some seconds, and say what is wrong with it."""

import os
import sys

from zerobeast import commands
from zerobeast.common.config.load import gather
from zerobeast.common.process.terminal import write
from zerobeast.launcher.env_check import findings

HELP = """beast check ENV [settings]

  ENV        as for --env: module:Name or file.py:Name of your own, or an id
  settings   that matter to it: --env.kwargs '{"size": 5}', --env.action_mask KEY, --env.leave_out ENTRY

A line for each finding: what is ok, and how observations are read; warnings about what a run accepts and is seldom
meant, such as values outside of their Box; and errors. The environment plays for up to 8 seconds, in a process of its
own. A run begins with a short check of environments of your own that it does not know yet.

exit codes: 0 no errors; 1 errors; 2 there is no such environment
"""


def main(argv: list[str]) -> int:
    """Run `beast check`. Raises ConfigError if there is no such environment."""
    env, flags = commands.about(argv, HELP)
    found = findings(gather([f"--env={env}", *flags], os.environ).config)
    for level, sentence in found:
        write(f"{level:7}  {sentence}", sys.stdout)
    return int(any(level == "error" for level, _ in found))
