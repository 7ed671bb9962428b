"""`beast bench` and `beast chaos`: one command each, whose own commands are modules of a package."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module

from zerobeast.common.errors import ConfigError
from zerobeast.common.runtime.suggest import suggestion

Commands = Mapping[str, str]  #: name, also of the module of the package whose `main(argv)` runs it -> what it does


def run(package: str, text: str, commands: Commands, argv: list[str]) -> int:
    """Run one of the commands, or explain them; returns the exit code.

    Args:
      package: `zerobeast.tools.<name>`, for `beast <name>`.
      text: what to say about all of them, with {commands} in it.
      commands: all of them.
      argv: the command's name first.
    """
    prog = f"beast {package.rpartition('.')[2]}"
    if argv[0] in ("-h", "--help"):
        width = max(map(len, commands))
        lines = (f"{prog} {name:<{width}} {meaning}" for name, meaning in commands.items())
        sys.stdout.write(text.format(commands="\n".join(lines)) + "\n")
        return 0
    if argv[0] not in commands:
        sys.stderr.write(f"{prog}: unknown command {argv[0]!r}{suggestion(argv[0], commands)}\n")
        return ConfigError.exit_code
    code: int = import_module(f"{package}.{argv[0]}").main(argv[1:])  # what one needs, the others do not wait for
    return code
