"""MinAtar's games, by the ids MinAtar/<Game>-v0 and -v1, which MinAtar/<Game> alone means."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from zerobeast.services.envserver import gymnasium_backend
from zerobeast.services.envserver.backend import Backend

PREFIX = "MinAtar/"
MEANINGS = {"n": "no-op", "l": "left", "u": "up", "r": "right", "d": "down", "f": "fire"}  #: of the games' letters
GAMES = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")


def make(env_id: str, kwargs: dict[str, Any]) -> Any:
    """Make one environment, once its package has registered its ids with gymnasium."""
    import gymnasium

    with _load_lazily("seaborn"):  # takes a second and 90 MB, and has the colours of pictures
        from minatar.gym import register_envs

    if not any(name.startswith(PREFIX) for name in gymnasium.registry):
        register_envs()
    env = gymnasium_backend.make(env_id if "-v" in env_id else f"{env_id}-v1", kwargs)
    base = env.unwrapped
    base.get_action_meanings = lambda: [MEANINGS[base.game.env.action_map[number]] for number in base.action_set]
    return env


@contextmanager
def _load_lazily(name: str) -> Iterator[None]:
    """What imports this module meanwhile loads it with the first use of it."""
    stand_in = ModuleType(name)
    stand_in.__getattr__ = lambda attribute: getattr(import_module(name), attribute)  # type: ignore[method-assign]
    before = sys.modules.setdefault(name, stand_in)
    try:
        yield
    finally:
        if before is stand_in:
            del sys.modules[name]


BACKEND = Backend(make, ids=lambda: [f"{PREFIX}{game}-v1" for game in GAMES])
