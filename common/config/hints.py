"""What an unknown setting may have meant: one that is spelt alike, or one that other projects call so."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from zerobeast.common.config.settings_table import (
    OPEN_SECTIONS,
    RUN,
    TREE,
    algorithm_settings,
    is_section,
    part_settings,
)
from zerobeast.common.errors import ConfigError
from zerobeast.common.text import did_you_mean


def unknown_setting_error(where: str, name: str, value: Any, section: str, others: Iterable[str] = ()) -> ConfigError:
    """An error about a name that is none of a setting.

    Args:
      where: the layer that gives it.
      name: a path, or a word without a dot.
      value: that it is given.
      section: of the run's algorithm; empty: not known.
      others: names that are known besides those of settings.
    """
    if is_section(name):
        example = next((path for path in TREE if path.startswith(f"{name}.")), f"those of {name}")
        return ConfigError(path=name, value=value, expected=f"a section with settings such as {example}", layer=where)
    home, _, word = name.lower().rpartition(".")
    hint = _hint(name, home, load_synonyms().get(word, ""), section, others)
    absent = ", or one of a package that is not installed here" if home in OPEN_SECTIONS else ""
    return ConfigError(f"{where}: unknown setting{absent}{hint}", path=name, value=value, layer=where)


def _hint(name: str, home: str, meant: str, section: str, others: Iterable[str]) -> str:
    """What may have been meant, in the run's algorithm first; `meant` is as in `load_synonyms`, if it is there."""
    if " " in meant:
        return f"; {meant}"
    own = algorithm_settings(home) or algorithm_settings(section)
    run = [*RUN, *(path for part in OPEN_SECTIONS for path in part_settings(part))]
    settings = [path for path in ((*run, *own) if own else TREE) if not path.startswith("parent.")]
    if meant:
        found = [path for path in settings if meant in (path, path.rpartition(".")[2])]
        theirs = [] if found else sorted(path for path in TREE if path.rpartition(".")[2] == meant)
        among = f"; {meant} is of other algorithms: {', '.join(theirs)}"
        return among if theirs else did_you_mean(meant, found or {meant}.intersection(others))
    if not home:
        return did_you_mean(name, [*settings, *others])
    within = [path for path in settings if path.startswith(f"{home}.")]
    return did_you_mean(name, within) or did_you_mean(name, settings if within else TREE)


@cache
def load_synonyms() -> dict[str, str]:
    """By the name that other projects have for it: the path or last part of a setting, or a sentence without one."""
    return dict(yaml.safe_load(Path(__file__).with_name("synonyms.yaml").read_text(encoding="utf-8")))
