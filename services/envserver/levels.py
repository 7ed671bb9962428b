"""The environments in which a run is evaluated: those that `evaluate.levels` names, or its own."""

from collections.abc import Iterable
from itertools import chain

from zerobeast.common.errors import ConfigError, EnvError, raise_as
from zerobeast.common.settings import RunConfig
from zerobeast.common.text import did_you_mean, split_ids
from zerobeast.services.envserver import gymnasium_backend
from zerobeast.services.envserver.backend import backend_of


def evaluation_envs(config: RunConfig) -> dict[str, str]:
    """Ids and by which name they are evaluated, in that order; the first name's returns are the score of a policy.

    A name is the id of an environment of the run or the end of one, a level of these (`Backend.levels`), or another id.

    Raises:
      ConfigError: nothing has this name, or several environments of the run end with it.
    """
    found: dict[str, str] = {}
    for name in filter(None, split_ids(config.evaluate.levels)):
        for env_id in _find_level(name, config.env.tasks):
            found.setdefault(env_id, name)
    return found or dict.fromkeys(config.env.tasks, "")


def _find_level(name: str, tasks: tuple[str, ...]) -> Iterable[str]:
    ends = [name] if name in tasks else [task for task in tasks if task.endswith(name)]
    if len(ends) > 1:
        raise ConfigError(f"evaluate.levels: {name!r} names {len(ends)} of {', '.join(tasks)}, expected one")
    with raise_as(EnvError, f"levels of {', '.join(tasks)}"):
        levels = [backend.levels(task) for task in tasks if (backend := backend_of(task))]
    if found := ends or [own[name] for own in levels if name in own]:
        return found
    backend = backend_of(name)
    if backend is gymnasium_backend.BACKEND and name not in backend.ids():  # it claims all that no other backend does
        known = list(dict.fromkeys(chain(*levels, tasks)))
        hint = did_you_mean(name, known)
        raise ConfigError(f"evaluate.levels: {name!r} is unknown, expected any of {', '.join(known)}, or an id{hint}")
    return [name]
