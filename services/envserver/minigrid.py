"""MiniGrid's and BabyAI's levels: the view of the agent and its direction.

Their text of the mission is left out. In levels in which it changes between episodes (GoTo..., Fetch, BabyAI's) the
agent does not get it, and can only learn what serves all missions.
"""

from typing import Any

from zerobeast.services.envserver import gymnasium_backend
from zerobeast.services.envserver.backend import Backend

PREFIXES = ("MiniGrid-", "BabyAI-")
KEPT_ENTRIES = ("image", "direction")
WITHOUT_MISSION = "the text of missions is left out of observations"


def make(env_id: str, kwargs: dict[str, Any]) -> Any:
    """Make one environment, once its package has registered its ids with gymnasium."""
    import minigrid  # noqa: F401 - which registers its ids
    from gymnasium.wrappers import FilterObservation

    gymnasium_backend.warn_once(f"{env_id}: {WITHOUT_MISSION}")
    return FilterObservation(gymnasium_backend.make(env_id, kwargs), KEPT_ENTRIES)


def ids() -> list[str]:
    import minigrid  # noqa: F401

    return [name for name in gymnasium_backend.ids() if name.startswith(PREFIXES)]


BACKEND = Backend(make, ids=ids)
