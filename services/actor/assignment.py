"""Which environment each group of an actor plays, and by which seed."""

from __future__ import annotations

from zerobeast.common.config.tree import RunConfig
from zerobeast.common.runtime.seeds import MAX_ENV_SEED, continued


def assigned(config: RunConfig, group: int, start: int) -> tuple[RunConfig, int]:
    """The settings of a group, whose number counts over all actors, and the seed of its first environment.

    Of a run with several environments a group has one; the groups take turns. The seeds of different groups never
    overlap, nor do those of nearby run seeds. Where a random id stands for the index of an actor without one, they
    differ in every run and are as good as certain not to overlap. As certain is that a run which continues does not
    repeat the seeds of an earlier start.
    """
    own = config.env.alone(config.env.tasks[group % len(config.env.tasks)])
    seed = continued(config.seed * 1_000_003 + group * config.actor.envs_per_group, start) % (MAX_ENV_SEED + 1)
    return config.model_copy(update={"env": own}), seed
