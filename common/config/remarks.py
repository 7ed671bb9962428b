"""Remarks on settings that are all valid: what has no effect, and what may surprise."""

import re
from collections.abc import Iterator, Mapping

from zerobeast.common.config import preset
from zerobeast.common.config.describe import source
from zerobeast.common.config.settings_table import OPEN_SECTIONS, table_of, value_at
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import RunConfig

EXPLICIT_ORIGINS = (
    "flag ",
    "argument ",
    "environment ",
)  #: first words of the origins of what was given for this start


def find_unused_flags(config: RunConfig, origins: Mapping[str, str]) -> Iterator[ConfigError]:
    """A mistake for every flag or variable that has no effect beside the algorithm's other settings."""
    for name, (cause, reason) in config.algorithm.unused_settings().items():
        if (where := origins.get(f"{config.section}.{name}", "")).startswith(EXPLICIT_ORIGINS):
            path = f"{config.section}.{cause}"
            chosen_by = source(origins.get(path, "the default"))
            sentence = f"{where}: {path} is {value_at(config, path)} ({chosen_by}), {reason}"
            idle = f"{config.section}.{name}"
            yield ConfigError(sentence, path=idle, value=value_at(config, idle), beside=[path], layer=where)


def notes(config: RunConfig, origins: Mapping[str, str]) -> Iterator[str]:
    """All remarks, for the log."""
    yield from _idle(config, origins)
    yield from _raw_frames(config)


def _idle(config: RunConfig, origins: Mapping[str, str]) -> Iterator[str]:
    """A sentence for every flag that sets something of another algorithm, or of other parts than the run has."""
    own = table_of(config)
    for path, where in origins.items():
        section = path.partition(".")[0]
        if path in own or not where.startswith(EXPLICIT_ORIGINS):
            continue
        if section in OPEN_SECTIONS:
            parts = [value_at(config, f"{section}.{name}") for name in OPEN_SECTIONS[section].chosen_by]
            yield f"{where} has no effect: {' and '.join(parts)} {'does' if len(parts) == 1 else 'do'} not use it"
        elif where.startswith(("flag ", "argument ")):
            name = where.partition(" ")[2]
            yield f"{name} has no effect: it sets {path}, and this run's algo is {config.section}"


def _raw_frames(config: RunConfig) -> Iterator[str]:
    """A sentence for every Atari game that a module makes, without what Atari games get here."""
    for task in config.env.tasks if "obs_type" not in config.env.kwargs else ():
        module, _, game = task.partition(":")
        if module == "ale_py" or preset.choose_preset(game, config.spec).startswith("atari"):
            usual = f"ALE/{re.split('NoFrameskip|Deterministic|-', game.removeprefix('ALE/'))[0]}-v5"
            yield f"env.id {task} sends raw colour frames, as made by {module}; {usual} has the usual preprocessing"
