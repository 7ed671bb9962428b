"""Flags of the benchmarks themselves; what they do not know are settings of the run."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerobeast.common.config.load import gather, load
from zerobeast.common.config.tree import RunConfig
from zerobeast.launcher.spaces import spec_of
from zerobeast.launcher.trust import refuse_code
from zerobeast.tools.bench.figures import Figure, table

SETTINGS = "Every setting of `beast train` is a flag here too, such as --env CartPole-v1."
MEANINGS = {
    "seconds": "how long to measure",
    "warmup": "seconds of training before measuring begins",
    "part": "seconds for each part of the limit",
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
    options, flags = numeric(command, **numbers).parse_known_args(argv)
    return options, settings(flags), flags


def numeric(command: str, **numbers: float) -> argparse.ArgumentParser:
    """A parser of a benchmark's own numeric options, and of `json`."""
    parser = argparse.ArgumentParser(prog=f"beast bench {command}", allow_abbrev=False, epilog=SETTINGS)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=float, default=default, help=f"{MEANINGS[name]}; default {default:g}")
    parser.add_argument("--json", type=Path, help="write the result here as well")
    return parser


def settings(flags: list[str]) -> RunConfig:
    """The configuration that flags make, without code of the user's own.

    Raises:
      ConfigError: a setting is wrong.
    """
    refuse_code(gather(flags, os.environ))
    return load(flags, os.environ, describe=spec_of)


def parse_plane(command: str, argv: list[str]) -> argparse.Namespace:
    """The options of a benchmark that is measured in one setting alone: `seconds` per figure and `json`."""
    parser = argparse.ArgumentParser(prog=f"beast bench {command}", allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to measure each figure; default 3")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    options = parser.parse_args(argv)
    if not 0 < options.seconds < math.inf:
        parser.error(f"--seconds {options.seconds:g}: expected more than 0")
    return options


def emit_figures(figures: Sequence[Figure], path: Path | None, note: str = "") -> None:
    """Print figures as a table, and write them as a list of objects where asked."""
    emit([figure._asdict() for figure in figures], table(figures) + (f"\n{note}" if note else ""), path)


def emit(result: Any, text: str, path: Path | None) -> None:
    """Print for people, and write for programs where asked."""
    sys.stdout.write(text + "\n")
    if path is not None:
        path.write_text(json.dumps(result, indent=2) + "\n")
