"""Settings that change while a run trains."""

from collections.abc import Mapping
from typing import Any

from zerobeast.common.config.layers import Given
from zerobeast.common.config.load import check
from zerobeast.common.config.relations import broken
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import RunConfig


def checked(config: RunConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the algorithm of a run, by name in its section, with values that they may have from now on.

    Raises:
      ConfigError: a line for every one that may not change while the run trains, or not to that.
    """
    live, section = config.algorithm.live(), config.section
    if (ranks := config.learner.ranks) > 1:  # which would have to change them before the same batch
        raise ConfigError(f"learner.ranks {ranks}: expected 1 for settings that change while it trains")
    mistakes = [
        f"{section}.{name} cannot change while the run trains: expected one of {', '.join(live) or 'none'}"
        for name in settings
        if name not in live
    ]
    given = [Given(path := f"{section}.{name}", settings[name], path) for name in settings if name in live]
    values = {path.rpartition(".")[2]: one.value for path, one in check(given, mistakes)[0].items()}
    changed = config.model_copy(update={"algorithm": config.algorithm.model_copy(update=values)})
    mistakes += (relation.sentence for relation in broken(changed, None))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return values
