"""What `deterministic` requires of other settings: a layer above the preset and below everything the user gives."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from zerobeast.common.config.describe import as_text
from zerobeast.common.config.layers import Given
from zerobeast.common.config.table import value_at
from zerobeast.common.settings import Relation, RunConfig

NAME = "deterministic"
ONE_THREAD = {"device": "cpu", "threads": 1, "precision": "float32"}

#: counts the env groups of a run on this machine
Groups = Callable[[RunConfig], int]


def implied(config: RunConfig, groups: Groups | None) -> dict[str, tuple[Any, str]]:
    """Setting -> the value that it must have, and why; empty for a run that is not deterministic.

    Args:
      config: of the run.
      groups: without it `learner.batch_size` is left out.
    """
    if not config.deterministic:
        return {}
    in_turn, same = "acting and learning take turns", "sums are made in the same order"
    needed: dict[str, tuple[Any, str]] = {
        "actor.collect_ahead": (False, in_turn),
        "learner.window": (1, in_turn),
        "learner.publish_every": (1, "every version acts"),
        "broker.max_batch_rows": (config.actor.envs_per_group, "the request of a group is a batch of its own"),
    }
    for role in ("learner", "broker"):
        needed |= {f"{role}.{name}": (value, same) for name, value in ONE_THREAD.items()}
    if groups is not None:
        envs = groups(config) * config.actor.envs_per_group
        needed["learner.batch_size"] = envs, "a batch has one rollout of every environment of the run"
    return needed


def layer(config: RunConfig, origins: Mapping[str, Given], groups: Groups | None) -> Iterator[Given]:
    """The implied values of settings that the user leaves open."""
    for path, (value, _) in implied(config, groups).items():
        if path not in origins or origins[path].where.startswith("preset "):
            yield Given(path, value, f"{NAME} true: {path}")


def broken(config: RunConfig, groups: Groups | None) -> Iterator[Relation]:
    """Values that contradict `deterministic`."""
    for path, (value, why) in implied(config, groups).items():
        if (given := value_at(config, path)) != value:
            expected = f"expected {as_text(value)}, so that {why}"
            yield Relation((path, NAME), f"{path} {as_text(given)} with {NAME}: {expected}")
