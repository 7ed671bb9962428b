"""Into how many env groups a new run divides its environments on this machine, if nobody has set one of its numbers.

Presets have numbers for two cores. With more cores, and without a GPU, the same environments are divided among more env
groups, and so among more workers: at most one for each core that the learner leaves, as long as a step of a group is
worth its messages and its forward pass. There are never more environments: with these, IMPALA needs more steps
(docs/results.md, "Does IMPALA learn as much from each step of more environments?").
"""

from math import ceil

from zerobeast.common.config.load import LoadedSettings
from zerobeast.common.config.settings_table import TREE
from zerobeast.common.errors import BeastError
from zerobeast.common.process.usage import cores
from zerobeast.common.settings import RunConfig
from zerobeast.common.settings.facts import facts_of
from zerobeast.common.settings.run import MAX_ENV_GROUPS
from zerobeast.plan.placement import placement_of
from zerobeast.plan.spaces import fetch_step_s

PRESET_CORES = 2  #: for which the numbers of the presets were chosen
GROUP_STEP_S = 0.002  #: seconds of a step of an env group besides its environments': messages and a forward pass
MIN_ROWS = 4  #: environments of an env group
MIN_STEP_S = 1e-6  #: of an environment: less cannot be measured


def fit_machine(loaded: LoadedSettings) -> LoadedSettings:
    """The settings of a new run, with env groups for this machine unless anybody has given what they follow from."""
    config, origins, available = loaded.config, loaded.origins, int(cores())
    given = (path for path in origins if facts_of(TREE[path]).scales and not _is_chosen(origins[path]))
    if any(given) or available <= PRESET_CORES or not _is_divisible(config, available):
        return loaded
    try:
        step_s = fetch_step_s(config)
    except BeastError:  # if the run cannot start without its environments, what starts it gives the reason
        return loaded
    actor = config.actor
    groups = actor.env_groups if step_s is None else choose_groups(config, available, step_s)
    if groups == actor.env_groups:
        return loaded
    numbers = {"env_groups": groups, "envs_per_group": actor.env_groups * actor.envs_per_group // groups}
    origin = f"chosen for {available} cores (--preset {config.preset} keeps its numbers)"
    return loaded._replace(
        config=config.model_copy(update={"actor": actor.model_copy(update=numbers)}),
        origins={**origins, **{f"actor.{name}": origin for name in numbers}},
    )


def choose_groups(config: RunConfig, available: int, step_s: float) -> int:
    """The number of env groups, that of the preset times a power of two.

    Args:
      config: settings of a run.
      available: cores.
      step_s: seconds of CPU time for a step of one environment.
    """
    groups, envs = config.actor.env_groups, config.actor.env_groups * config.actor.envs_per_group
    playing = available - placement_of(config, available, gpu=False).threads["learner.threads"]
    least = max(MIN_ROWS, ceil(GROUP_STEP_S / max(step_s, MIN_STEP_S)))
    while 2 * groups <= min(playing, MAX_ENV_GROUPS) and 2 * groups * least <= envs and envs % (2 * groups) == 0:
        groups *= 2
    return groups


def _is_chosen(origin: str) -> bool:
    """Whether nobody has given it: a preset that nobody has named has."""
    return origin.startswith(("chosen ", "preset "))


def _is_divisible(config: RunConfig, available: int) -> bool:
    """Whether all env groups of a run are alike, nothing that it promises depends on their number, and workers play.

    More of these do not help if a replay is learned from many times for each step that is played.
    """
    alike = len(config.env.tasks) == 1 and not config.env.opponent
    promised = config.deterministic or not config.local.check
    return alike and not (promised or config.algorithm.replays) and placement_of(config, available).name == "fused"
