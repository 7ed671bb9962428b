"""The two sides of a group's environments: which rows are learned from, and who wins. No sockets, no clock."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.settings import PAST, EnvConfig
from zerobeast.common.wire.episodes import Episode, joined

WIN = "win"  #: number of an episode: 1, 0.5 for a draw, or 0
OPPONENT = "opponent"  #: likewise: agent steps of the policy of the other side


class Sides:
    """The sides in N rows.

    Args:
      opposed: [N] which rows are of the other side.
      env: the environments.
    """

    def __init__(self, opposed: NDArray[np.bool_], env: EnvConfig) -> None:
        self.learned: NDArray[np.intp] = np.flatnonzero(~opposed)  #: indices of the rows that are learned from
        self._opposed, self._agents, self._by_version = opposed, env.agents, env.opponent == PAST
        self._returns = np.zeros(len(opposed))
        self.versions: list[int] = []  #: of the opponent in each environment, 0: the newest policy

    def checked(self, versions: Any = None) -> list[int]:
        """What a broker says of the opponents; none if it cannot be right."""
        known = type(versions) is list and len(versions) == len(self._opposed) // self._agents
        return versions if known and all(type(each) is int and each >= 0 for each in versions) else []

    def judged(self, rows: NDArray[np.void], episodes: tuple[Episode, ...]) -> list[Episode]:
        """The episodes of the side that is learned from, with `win` and who played against it.

        An agent has won if its return is higher than the mean of the other side's so far.

        Args:
          rows: [N] of `step_record`.
          episodes: that have ended in them, in the order of rows; none count if there are more or fewer.
        """
        begun = rows["first"].reshape(-1, self._agents).all(1)  # not only agents that have left
        self._returns[np.repeat(begun, self._agents)] = 0
        self._returns += rows["reward"]
        ended = np.flatnonzero(rows["terminated"] | rows["truncated"])
        if len(ended) != len(episodes):
            return []
        found = zip(ended.tolist(), episodes, strict=True)
        return [episode._replace(infos=self._infos(row, episode)) for row, episode in found if not self._opposed[row]]

    def _infos(self, row: int, episode: Episode) -> dict[str, float]:
        env = row // self._agents
        part = slice(env * self._agents, (env + 1) * self._agents)
        lead = self._returns[row] - self._returns[part][self._opposed[part]].mean()
        win = float(np.sign(lead) + 1) / 2
        own = {WIN: win}
        if version := self.versions[env] if self.versions else 0:
            own |= {OPPONENT: float(version)} | ({f"{WIN}.{version}": win} if self._by_version else {})
        return joined(own, episode.infos)
