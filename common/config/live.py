"""Settings that change while a run trains, by path."""

from collections.abc import Mapping
from typing import Any

from zerobeast.common.config.layers import GivenValue
from zerobeast.common.config.load import check_layer
from zerobeast.common.config.relations import find_broken_relations
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.settings import RunConfig


def live_paths(config: RunConfig) -> tuple[str, ...]:
    """Those that may: some of the algorithm, and what a curriculum of environments follows."""
    own = tuple(f"{config.section}.{name}" for name in config.algorithm.live())
    return (*own, "env.progress") if config.env.follows_progress else own


def check_changes(config: RunConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the values that they may have from now on.

    Raises:
      ConfigError: a line for every one that may not change while the run trains, or not to that.
    """
    live = live_paths(config)
    if (ranks := config.learner.ranks) > 1:  # which would have to change them before the same batch
        raise ConfigError(path="learner.ranks", value=ranks, expected="1 to change settings while the run trains")
    expected = f"one of {', '.join(live) or 'none'}"
    mistakes: list[BeastError] = [
        ConfigError(
            f"{path} cannot change while the run trains: expected {expected}",
            path=path,
            value=value,
            expected=expected,
        )
        for path, value in settings.items()
        if path not in live
    ]
    given = [GivenValue(path, settings[path], path) for path in live if path in settings]
    values = {path: one.value for path, one in check_layer(given, mistakes)[0].items()}
    changed = config.model_copy(update={"algorithm": config.algorithm.model_copy(), "env": config.env.model_copy()})
    apply_changes(changed, values)
    mistakes += (relation.mistake() for relation in find_broken_relations(changed, None))
    if mistakes:
        raise ConfigError.of(mistakes)
    return values


def apply_changes(config: RunConfig, values: Mapping[str, Any]) -> None:
    """Change settings to what `check_changes` returns, for all that hold these settings."""
    for path, value in values.items():
        section, name = path.split(".")
        vars(config.env if section == "env" else config.algorithm)[name] = value
