"""MinAtar's games, by the ids MinAtar/<Game>-v0 and -v1, which MinAtar/<Game> alone means."""

from typing import Any

from zerobeast.services.envserver import gymnasium_backend
from zerobeast.services.envserver.backend import Backend

PREFIX = "MinAtar/"
MEANINGS = {"n": "no-op", "l": "left", "u": "up", "r": "right", "d": "down", "f": "fire"}  #: of the games' letters
GAMES = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")


def make(env_id: str, kwargs: dict[str, Any]) -> Any:
    """Make one environment, once its package has registered its ids with gymnasium."""
    import gymnasium
    from minatar.gym import register_envs

    if not any(name.startswith(PREFIX) for name in gymnasium.registry):
        register_envs()
    env = gymnasium_backend.make(env_id if "-v" in env_id else f"{env_id}-v1", kwargs)
    base = env.unwrapped
    base.get_action_meanings = lambda: [MEANINGS[base.game.env.action_map[number]] for number in base.action_set]
    return env


BACKEND = Backend(make, ids=lambda: [f"{PREFIX}{game}-v1" for game in GAMES])
