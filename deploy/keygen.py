"""`beast keygen`: keys for encrypted tcp, one certificate for each role."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common.transport import make_keys

DESCRIPTION = """Make new keys for encrypted tcp: a public and a secret file for each role.
Every service of a run needs --security.keys FOLDER with its own secret file and all public ones."""


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code.

    Raises:
      ConfigError: the folder holds keys already, or cannot be written.
    """
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="beast keygen", description=DESCRIPTION, formatter_class=formatter)
    parser.add_argument("folder", type=Path, help="where to write them; must hold no keys")
    for file in make_keys(parser.parse_args(argv).folder):
        sys.stdout.write(f"{file}\n")
    return 0
