"""What an unknown setting may have meant: one that is spelt alike, or one that other projects call so."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import yaml

from zerobeast.common.config.table import RUN, TREE, of_algorithm
from zerobeast.common.text import did_you_mean


def hint(name: str, section: str, others: Iterable[str] = ()) -> str:
    """The end of a sentence about an unknown setting; empty if there is nothing to suggest.

    Args:
      name: a path, or a word without a dot.
      section: of the run's algorithm; empty: not known.
      others: names that are known besides those of settings.
    """
    home, _, word = name.lower().rpartition(".")
    meant = elsewhere().get(word, "")
    if " " in meant:
        return f"; {meant}"
    own = of_algorithm(home) or of_algorithm(section)
    settings = [path for path in ({**RUN, **own} if own else TREE) if not path.startswith("parent.")]
    if meant:
        found = [path for path in settings if meant in (path, path.rpartition(".")[2])]
        return did_you_mean(meant, found or {meant}.intersection(others))
    return did_you_mean(name, TREE if home else [*settings, *others])


@cache
def elsewhere() -> dict[str, str]:
    """By the name that other projects have for it: the path or last part of a setting, or a sentence without one."""
    return dict(yaml.safe_load(Path(__file__).with_name("elsewhere.yaml").read_text(encoding="utf-8")))
