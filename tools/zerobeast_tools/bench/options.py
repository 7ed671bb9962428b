"""Flags of the benchmarks themselves; all other flags are settings of the run."""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from zerobeast import commands
from zerobeast.common.process.terminal import write
from zerobeast.common.settings import RunConfig
from zerobeast_tools.bench.figures import Figure, table
from zerobeast_tools.throwaway_run import load_settings

SETTINGS = "Every setting of `beast train` is a flag here too, such as --env CartPole-v1."
MEANINGS = {
    "seconds": "seconds to measure",
    "budget": "seconds for all measurements",
    "warmup": "seconds of training before measuring begins",
    "part": "seconds for each part of the limit",
    "minutes": "minutes to train",
    "observations": "number of random-play observations to rank",
    "epochs": "epochs of the contrastive loss",
}


def parse_options(
    command: str, description: str | None, argv: list[str], **numbers: float
) -> tuple[argparse.Namespace, RunConfig, list[str]]:
    """Split `argv` into the benchmark's options and the settings of the run.

    Args:
      command: for the help text.
      description: likewise.
      argv: what the user typed.
      numbers: the benchmark's own numeric options with their defaults.

    Returns:
      The options, the configuration, and the flags that made it.
    """
    options, flags = numeric_parser(command, description, **numbers).parse_known_args(argv)
    return options, load_settings(flags), flags


def numeric_parser(command: str, description: str | None, /, **numbers: float) -> argparse.ArgumentParser:
    """A parser of a benchmark's own numeric options, and of `json`."""
    parser = commands.make_parser(f"beast bench {command}", description, SETTINGS)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=float, default=default, help=f"{MEANINGS[name]}; default {default:g}")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    return parser


def run_plane(
    command: str,
    description: str | None,
    argv: list[str],
    measure: Callable[[float], list[Figure]],
    otherwise: str = "",
) -> int:
    """Run a benchmark that takes no settings of a run; returns the exit code.

    Args:
      command: for the help text.
      description: likewise.
      argv: what the user typed: `seconds` for each figure, and `json`.
      measure: returns the figures, given the seconds for each.
      otherwise: the note to print if a figure cannot be judged.
    """
    parser = numeric_parser(command, description, seconds=3.0)
    parser.epilog = None
    options = parser.parse_args(argv)
    if not 0 < options.seconds < math.inf:
        parser.error(f"--seconds {options.seconds:g}: expected more than 0")
    figures = measure(options.seconds)
    emit_figures(figures, options.json, otherwise if any(figure.met is None for figure in figures) else "")
    return 0


def emit_figures(figures: Sequence[Figure], path: Path | None, note: str = "", **details: Any) -> None:
    """Print figures as a table with a note below it; write them and `details` to `path` if given."""
    text = table(figures) + (f"\n{note}" if note else "")
    emit({**details, "figures": [figure._asdict() for figure in figures]}, text, path)


def emit(result: Any, text: str, path: Path | None) -> None:
    """Print `text`, and write `result` as JSON to `path` if given."""
    write(text)
    if path is not None:
        path.write_text(json.dumps(result, indent=2) + "\n")
