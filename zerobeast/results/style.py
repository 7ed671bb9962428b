"""One colour and one marker for each algorithm, in every picture, on white and on dark paper.

Colours that are likely to stand in one picture stay apart for colour-blind eyes too, at the price of being no rainbow;
in grey print the markers distinguish algorithms. Several groups of one algorithm are shades of its colour with
different dashes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Style(NamedTuple):
    """How an algorithm is drawn."""

    title: str
    light: str  #: colour on white paper
    dark: str  #: colour on dark paper
    marker: str


ALGORITHMS = {
    "impala": Style("IMPALA", "#2b64da", "#699cff", "o"),
    "a2c": Style("A2C", "#23b3df", "#9de6ff", "v"),
    "ppo": Style("PPO", "#b04a00", "#ea6e00", "s"),
    "vmpo": Style("V-MPO", "#860849", "#c95181", "p"),
    "impact": Style("IMPACT", "#9f9b00", "#cac52f", "X"),
    "dqn": Style("DQN", "#009163", "#2dc68c", "^"),
    "c51": Style("C51", "#5f2e00", "#ac6225", "<"),
    "rainbow": Style("Rainbow", "#f371a9", "#ffafcd", "*"),
    "r2d2": Style("R2D2", "#00afbb", "#33dbe9", "D"),
    "ddpg": Style("DDPG", "#7a82e0", "#a7b1ff", "P"),
    "td3": Style("TD3", "#dfa800", "#ffd457", "h"),
    "sac": Style("SAC", "#570086", "#964cd1", "d"),
}
#: (light, dark, marker) of algorithms that are not in the table, in the order in which a picture has them
OTHER_STYLES = (("#5a5a5a", "#b8b8b8", ">"), ("#9c9c9c", "#7c7c7c", "H"), ("#2a2a2a", "#ededed", "8"))
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1.5, 1, 1.5, 1, 1.5)))
#: on light and on dark paper: shares of black (-) or white (+) in the colours of an algorithm's first and last group
SHADES = ((-0.5, 0.4), (-0.2, 0.65))


def title(algo: str) -> str:
    """The name of an algorithm as its paper writes it."""
    return ALGORITHMS[algo].title if algo in ALGORITHMS else algo


def place_of(algo: str) -> int:
    """The place of an algorithm in tables and legends; those that are not in the table come last."""
    return [*ALGORITHMS, algo].index(algo)


def line_style(algo: str, number: int, siblings: int, others: Sequence[str], *, dark: bool) -> dict[str, Any]:
    """How matplotlib draws the line of a group: color, linestyle and marker.

    Args:
      algo: its algorithm.
      number: of the group among those of its algorithm, from 0.
      siblings: how many of these there are.
      others: all algorithms of the picture that are not in the table.
      dark: whether the paper is dark.
    """
    if algo in ALGORITHMS:
        _, *colours, marker = ALGORITHMS[algo]
    else:
        *colours, marker = OTHER_STYLES[others.index(algo) % len(OTHER_STYLES)]
    first, last = SHADES[dark]
    share = first + (last - first) * number / (siblings - 1) if siblings > 1 else 0.0
    return {"color": _shade(colours[dark], share), "linestyle": DASHES[number % len(DASHES)], "marker": marker}


def _shade(colour: str, share: float) -> str:
    """A colour mixed with black (down to -1) or white (up to 1)."""
    parts = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    mixed = [part + share * (255 - part if share > 0 else part) for part in parts]
    return "#" + "".join(f"{round(part):02x}" for part in mixed)
