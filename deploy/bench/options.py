"""Flags of the benchmarks themselves; what they do not know are settings of the run."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from common.config.load import load
from common.config.tree import RunConfig

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
    parser = argparse.ArgumentParser(prog=f"beast bench {command}", allow_abbrev=False, epilog=SETTINGS)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=float, default=default, help=f"{MEANINGS[name]}; default {default:g}")
    parser.add_argument("--json", type=Path, help="write the result here as well")
    options, flags = parser.parse_known_args(argv)
    return options, load(flags, os.environ), flags


def emit(result: dict[str, Any], text: str, path: Path | None) -> None:
    """Print for people, and write for programs where asked."""
    sys.stdout.write(text + "\n")
    if path is not None:
        path.write_text(json.dumps(result, indent=2) + "\n")
