"""Flags of the benchmarks themselves; what they do not know are settings of the run."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from zerobeast import commands
from zerobeast.common.config.tree import RunConfig
from zerobeast.tools.bench.figures import Figure, table
from zerobeast.tools.throwaway_run import settings

SETTINGS = "Every setting of `beast train` is a flag here too, such as --env CartPole-v1."
MEANINGS = {
    "seconds": "how long to measure",
    "warmup": "seconds of training before measuring begins",
    "part": "seconds for each part of the limit",
    "minutes": "how long to train",
}


def parse(command: str, argv: list[str], **numbers: float) -> tuple[argparse.Namespace, RunConfig, list[str]]:
    """Split `argv` into the benchmark's options and the settings of the run.

    Args:
      command: for the help text.
      argv: what the user typed.
      numbers: the benchmark's own numeric options with their defaults.

    Returns:
      The options, the configuration, and the flags that made it.
    """
    options, flags = numeric(command, None, **numbers).parse_known_args(argv)
    return options, settings(flags), flags


def numeric(command: str, description: str | None, /, **numbers: float) -> argparse.ArgumentParser:
    """A parser of a benchmark's own numeric options, and of `json`."""
    parser = commands.parser(f"beast bench {command}", description, SETTINGS)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=float, default=default, help=f"{MEANINGS[name]}; default {default:g}")
    parser.add_argument("--json", type=Path, help="write the result here as well")
    return parser


def run_plane(command: str, argv: list[str], measure: Callable[[float], list[Figure]], otherwise: str = "") -> int:
    """A benchmark that is measured in one setting alone; returns the exit code.

    Args:
      command: for the help text.
      argv: what the user typed: `seconds` for each figure, and `json`.
      measure: of so many seconds, the figures.
      otherwise: what to say if one of them cannot be judged.
    """
    parser = numeric(command, None, seconds=3.0)
    parser.epilog = None
    options = parser.parse_args(argv)
    if not 0 < options.seconds < math.inf:
        parser.error(f"--seconds {options.seconds:g}: expected more than 0")
    figures = measure(options.seconds)
    emit_figures(figures, options.json, otherwise if any(figure.met is None for figure in figures) else "")
    return 0


def emit_figures(figures: Sequence[Figure], path: Path | None, note: str = "", **details: Any) -> None:
    """Print figures as a table with a note below it; write them, and details, where asked."""
    text = table(figures) + (f"\n{note}" if note else "")
    emit({**details, "figures": [figure._asdict() for figure in figures]}, text, path)


def emit(result: Any, text: str, path: Path | None) -> None:
    """Print for people, and write for programs where asked."""
    sys.stdout.write(text + "\n")
    if path is not None:
        path.write_text(json.dumps(result, indent=2) + "\n")
