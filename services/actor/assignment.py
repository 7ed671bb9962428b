"""The environment and the seed of each group of an actor."""

from __future__ import annotations

from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.wire.seeds import MAX_ENV_SEED, continued


def assigned(config: RunConfig, group: int, start: int) -> tuple[RunConfig, int]:
    """The settings of a group, which is numbered over all actors, and the seed of its first environment.

    In a run with several environments each group has one, dealt out in turn. The seeds of different groups never
    overlap, nor do those of nearby run seeds. For an actor without an index, a random id stands in: its seeds differ in
    every run and almost certainly do not overlap with others. A run that continues almost certainly does not repeat the
    seeds of an earlier start.
    """
    own = config.env.alone(config.env.tasks[group % len(config.env.tasks)])
    seed = continued(config.seed * 1_000_003 + group * config.actor.envs_per_group, start) % (MAX_ENV_SEED + 1)
    return config.model_copy(update={"env": own}), seed
