"""Packages that only some installations have, and the extra that brings each."""

from __future__ import annotations

EXTRAS = {
    "torch": "torch",
    "tensorboard": "learner",
    "zstandard": "learner",
    "gymnasium": "envserver",
    "ale_py": "envserver",
    "rich": "cli",
    "psutil": "cli",
    "matplotlib": "plot",
}


def how_to_install(error: ModuleNotFoundError) -> str:
    """What is missing and how to get it, as a sentence.

    Raises:
      ModuleNotFoundError: the same, if no extra brings it: the installation is broken.
    """
    if error.name not in EXTRAS:
        raise error
    return f"{error.name} is not installed: pip install 'zerobeast[{EXTRAS[error.name]}]'"
