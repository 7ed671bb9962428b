"""Human-normalised scores of Atari games: 0 is a player that acts at random, 1 a professional human tester.

The scores are those of Wang et al. 2016 (arXiv:1511.06581), some of them from Mnih et al. 2015: episodes of up to 30
minutes that begin with up to 30 no-ops, without sticky actions. They stand in atari.csv, by the games' names in ids.
"""

import csv
import re
from functools import cache
from importlib import resources

_GAME = re.compile(r"(?:(?:ale_py:)?ALE/|envpool/)?([A-Za-z]+?)(?:-ram)?(?:NoFrameskip|Deterministic)?-v\d+")


@cache
def scores() -> dict[str, tuple[float, float]]:
    """Game -> (score of random play, score of a human)."""
    table = resources.files("zerobeast.results").joinpath("atari.csv").read_text(encoding="utf-8")
    return {game: (float(random), float(human)) for game, random, human in csv.reader(table.splitlines()[1:])}


def human_normalized(env: str, score: float) -> float | None:
    """A score between those of random play (0) and a human (1); None if the environment is none of the 57 games."""
    found = _GAME.fullmatch(env)
    if found is None or found[1] not in scores():
        return None
    random, human = scores()[found[1]]
    return (score - random) / (human - random)
