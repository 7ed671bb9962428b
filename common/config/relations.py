"""What must hold between settings that are each right by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, gcd
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from common.config.tree import RunConfig

PARTIAL = "some layers only"  #: validation context in which relations are not looked at


class Relation(NamedTuple):
    """A relation that is broken."""

    paths: tuple[str, ...]  #: of the settings that it is between
    sentence: str


class BrokenRelations(ValueError):
    """Raised by the root of the tree; pydantic keeps it in its own error."""

    def __init__(self, broken: tuple[Relation, ...]) -> None:
        super().__init__("; ".join(relation.sentence for relation in broken))
        self.broken = broken


def relations(config: RunConfig) -> Iterator[Relation]:
    """What is broken wherever the services run."""
    envs, rows = config.actor.envs_per_group, config.broker.max_batch_rows
    if envs > rows:
        yield Relation(
            ("broker.max_batch_rows", "actor.envs_per_group"),
            f"broker.max_batch_rows {rows} is below actor.envs_per_group {envs}: no request would fit a batch",
        )


def local_relations(config: RunConfig) -> Iterator[Relation]:
    """What is broken where this machine runs every actor there is."""
    groups, envs = config.local.actors * config.actor.env_groups, config.actor.envs_per_group
    batch, window = config.learner.batch_size, config.learner.window
    needed = window_needed(batch, groups, envs)
    if window < needed:
        yield Relation(
            ("learner.window", "learner.batch_size", "actor.envs_per_group", "actor.env_groups", "local.actors"),
            f"learner.window {window} is too small: {groups} groups of {envs} environments would never fill a batch "
            f"of learner.batch_size {batch}; expected learner.window of at least {needed}, a smaller batch, or more "
            f"environments",
        )


def window_needed(batch_size: int, groups: int, envs_per_group: int) -> int:
    """Messages that each group must be allowed to have under way so that a batch can always fill.

    A message of envs_per_group rows is acknowledged when an update has used its last row. One message can thus be
    held back for its last rows, which are a multiple of gcd(envs_per_group, batch_size); the rest of the windows
    must complete a batch with them: (groups * window - 1) * envs_per_group + gcd >= batch_size.
    """
    held_back = gcd(envs_per_group, batch_size)
    messages = ceil((batch_size - held_back) / envs_per_group) + 1
    return ceil(messages / groups)
