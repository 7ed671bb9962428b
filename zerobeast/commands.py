"""Commands that have commands: `beast`, `beast bench` and `beast chaos`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from importlib import import_module

from zerobeast.common.errors import ConfigError
from zerobeast.common.runtime.suggest import suggestion


def run(
    prog: str, text: str, commands: Mapping[str, str], argv: list[str], call: Callable[[str, list[str]], int]
) -> int:
    """Run one of the commands, or explain them; returns the exit code.

    Args:
      prog: what comes before a command.
      text: what to say about all of them, with {commands} in it.
      commands: name -> what it does.
      argv: the command's name first; without one they are explained.
      call: runs the command of a name with the arguments behind it.
    """
    name, *rest = argv or ["--help"]
    if name in ("-h", "--help", "help"):
        width = max(map(len, commands))
        lines = (f"  {prog} {command:<{width}}  {meaning}" for command, meaning in commands.items())
        sys.stdout.write(text.format(commands="\n".join(lines)) + "\n")
        return 0
    if name not in commands:
        what = "option" if name.startswith("-") else "command"
        sys.stderr.write(f"{prog}: unknown {what} {name!r}{suggestion(name, commands)}\n")
        return ConfigError.exit_code
    return call(name, rest)


def run_module(package: str, name: str, argv: list[str]) -> int:
    """Run `main` of a module, imported only now: what one command needs, the others do not wait for."""
    code: int = import_module(f"{package}.{name}").main(argv)
    return code


def parser(prog: str, description: str | None, epilog: str | None = None) -> argparse.ArgumentParser:
    """A parser of exact flags, whose help keeps the lines of its description."""
    return argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
