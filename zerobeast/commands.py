"""Commands with subcommands, such as `beast`, and parsers for them."""

import argparse
import ast
import contextlib
import math
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.plugins import find_entry_points
from zerobeast.common.process.terminal import write
from zerobeast.common.text import suggestion

GROUP = "zerobeast.commands"  #: of entry points, functions from the arguments of a command to its exit code


def run_command(
    prog: str, text: str | None, commands: Mapping[str, str], argv: list[str], call: Callable[[str, list[str]], int]
) -> int:
    """Run one of the commands, or print the help text; returns the exit code.

    Args:
      prog: the words before a command's name.
      text: help text for all of them, with the placeholder {commands}.
      commands: name -> what it does.
      argv: the command's name first; if empty, the help text is printed.
      call: runs the named command with the remaining arguments.
    """
    name, *rest = argv or ["--help"]
    if name in ("-h", "--help", "help"):
        width = max(map(len, commands))
        lines = (f"  {prog} {command:<{width}}  {meaning}" for command, meaning in commands.items())
        write((text or "{commands}").format(commands="\n".join(lines)).strip())
        return 0
    if name not in commands:
        what = "option" if name.startswith("-") else "command"
        write(f"{prog}: unknown {what} {name!r}{suggestion(name, commands, len(commands))}", sys.stderr)
        return ConfigError.exit_code
    return call(name, rest)


def run_module(package: str, name: str, argv: list[str]) -> int:
    """Run a module's `main`, which returns the exit code or raises a BeastError whose sentence is for the user.

    It is imported only now, so that no command waits for the imports of another.
    """
    return int(import_module(f"{package}.{name}").main(argv))


def find_package_commands() -> dict[str, str]:
    """Commands that installed packages bring, each with the first line of its module's text. Nothing is imported."""
    return {name: _first_line(entry) for name, (entry, *_) in find_entry_points(GROUP).items()}


def _first_line(entry: EntryPoint) -> str:
    with contextlib.suppress(Exception):  # whatever is wrong with it
        top, *parts = entry.module.split(".")
        found, name = find_spec(top), top
        for part in parts:  # of a name with a dot, `find_spec` would import the package
            name = f"{name}.{part}"
            found = PathFinder.find_spec(name, found.submodule_search_locations if found else None)
        file = Path(str(getattr(found, "origin", "")))
        return (ast.get_docstring(ast.parse(file.read_bytes())) or "").partition("\n")[0]
    return ""


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add --root, whose default is the environment variable of the setting."""
    root = str(run_files.root_of(None))
    parser.add_argument("--root", default=root, help="folder that contains the run folders; default %(default)s")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see --help")


def make_parser(prog: str, description: str | None, epilog: str | None = None) -> argparse.ArgumentParser:
    """The parser of a command, which raises ConfigError for what is wrong, and describes itself by its module's text.

    It accepts no abbreviated flags, and keeps the line breaks of the text.
    """
    return _Parser(
        prog=prog,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def parse_finite(text: str) -> float:
    """A number from a flag, neither infinite nor NaN."""
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    raise argparse.ArgumentTypeError(f"got {text!r}, expected a finite number")


def parse_positive(text: str) -> int:
    """A whole number, at least 1, from a flag."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number, at least 1")
    return number
