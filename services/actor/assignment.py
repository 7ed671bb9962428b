"""Which environment each group of an actor plays, and by which seed."""

from __future__ import annotations

from zerobeast.common.config.tree import RunConfig
from zerobeast.common.runtime.seeds import MAX_ENV_SEED, continued


def of_group(config: RunConfig, group: int) -> RunConfig:
    """Of a run with several environments a group has one; the groups of all actors take turns."""
    tasks = config.env.tasks
    return config.model_copy(update={"env": config.env.alone(tasks[group % len(tasks)])})


def seed_of_group(config: RunConfig, group: int, start: int) -> int:
    """Of a group's first environment. Those of different groups never overlap, nor do those of nearby run seeds.

    Where a random id stands for the index of an actor without one, they differ in every run and are as good as certain
    not to overlap. As certain is that a run which continues does not repeat the seeds of an earlier start.
    """
    envs_before = group * config.actor.envs_per_group
    return continued(config.seed * 1_000_003 + envs_before, start) % (MAX_ENV_SEED + 1)
