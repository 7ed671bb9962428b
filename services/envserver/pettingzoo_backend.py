"""PettingZoo's environments of several agents, by the ids pettingzoo/<family>/<game>, such as
pettingzoo/classic/connect_four_v3. The families mpe and magent are packages of their own, mpe2 and magent2.
"""

import importlib
import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zerobeast.services.envserver.backend import Backend, unknown_id_error

PREFIX = "pettingzoo/"
FAMILIES = ("atari", "butterfly", "classic", "sisl")
OTHER_PACKAGES = {"mpe": "mpe2", "magent": "magent2.environments"}


def make(env_id: str, kwargs: dict[str, Any]) -> Any:
    """Make one environment: a parallel one if there is one of that name, else one in which agents take turns."""
    _, family, game = env_id.split("/")
    home = OTHER_PACKAGES.get(family, f"pettingzoo.{family}")
    if env_id not in (known := list(_games(family))):
        importlib.import_module(home.partition(".")[0])  # which may be what is missing
        raise unknown_id_error(env_id, f"expected one of {', '.join(known or _list_ids())}")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # all versions are made in this way
        module = importlib.import_module(f"{home}.{game}")
    return getattr(module, "parallel_env", module.env)(**kwargs)


def _games(family: str) -> Iterator[str]:
    """The ids of a family that is installed."""
    if family not in (*FAMILIES, *OTHER_PACKAGES):
        return
    home = OTHER_PACKAGES.get(family, f"pettingzoo.{family}")
    if importlib.util.find_spec(home.partition(".")[0]) is None:
        return
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        spec = importlib.util.find_spec(home)
    for folder in spec.submodule_search_locations or () if spec else ():
        yield from (f"{PREFIX}{family}/{path.stem}" for path in sorted(Path(folder).glob("*_v[0-9]*.py")))


def _list_ids() -> list[str]:
    return [game for family in (*FAMILIES, *OTHER_PACKAGES) for game in _games(family)]


BACKEND = Backend(make, ids=_list_ids)
