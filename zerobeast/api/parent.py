"""Which run a command or call is to begin from."""

from collections.abc import Sequence

from zerobeast.common.config.flags import ALIASES, split
from zerobeast.launcher.parent import Parent, read


def parent_in(argv: Sequence[str]) -> Parent | None:
    """The run that `--from` names among flags; None if there is no such flag.

    Raises:
      ConfigError: there is no such run, or it has no checkpoint.
      CheckpointError: its checkpoint cannot be read.
    """
    flags = list(split(argv, []))  # mistakes in others are reported later
    names = [flag.text for flag in flags if ALIASES.get(flag.key, flag.key) == "from_run" and flag.text]
    if not names:
        return None
    from zerobeast.api.saved import find

    roots = [f"--root={flag.text}" for flag in flags if flag.key == "root" and flag.text]
    return read(names[-1], find(names[-1], roots))
