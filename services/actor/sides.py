"""The two sides of a group's environments: which rows are learned from, and who wins. No sockets, no clock."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.settings import PAST_OPPONENT, EnvConfig
from zerobeast.common.wire.episodes import Episode, merge_infos

WIN = "win"  #: number of an episode: 1, 0.5 for a draw, or 0
OPPONENT = "opponent"  #: likewise: agent steps of the policy of the other side
UNKNOWN = -1  #: in place of an opponent's agent steps


class Sides:
    """The sides in N rows.

    Args:
      opposed: [N] which rows are of the other side.
      env: the environments.
    """

    def __init__(self, opposed: NDArray[np.bool_], env: EnvConfig) -> None:
        self.learned: NDArray[np.intp] = np.flatnonzero(~opposed)  #: indices of the rows that are learned from
        self._opposed, self._agents, self._by_age = opposed, env.agents, env.opponent == PAST_OPPONENT
        self._returns = np.zeros(len(opposed))
        envs = len(opposed) // env.agents
        self._begun = np.zeros(envs, np.bool_)  #: whether the newest rows are the first of a game
        self._versions = [0] * envs  #: agent steps of the opponent in each environment, 0: the newest policy
        self._newest = 1  #: agent steps of the newest of them so far

    def face(self, versions: Any = None) -> None:
        """Take which opponents a broker has acted for; no game counts in which they changed, as after its restart."""
        known = type(versions) is list and len(versions) == len(self._versions)
        if not known or not all(type(each) is int and each >= 0 for each in versions):
            versions = [UNKNOWN] * len(self._versions)
        changes = zip(self._begun.tolist(), self._versions, versions, strict=True)
        self._versions = [new if begun or new == old else UNKNOWN for begun, old, new in changes]
        self._newest = max(self._newest, *versions)

    def judge_ends(self, rows: NDArray[np.void], ends: Sequence[Episode | None]) -> list[Episode | None]:
        """The ends of the side that is learned from, with `win` and who played against it.

        An agent has won if its return is higher than the mean of the other side's so far.

        Args:
          rows: [N] of `step_record`.
          ends: those in them, in the order of rows, None for that of no whole episode; none count if there are more or
            fewer.
        """
        self._begun[:] = rows["first"].reshape(-1, self._agents).all(1)  # not only agents that have left
        self._returns[np.repeat(self._begun, self._agents)] = 0
        self._returns += rows["reward"]
        ended = np.flatnonzero(rows["terminated"] | rows["truncated"])
        if len(ended) != len(ends):
            return []
        found = [(row, end) for row, end in zip(ended.tolist(), ends, strict=True) if not self._opposed[row]]
        return [end and end._replace(infos=self._infos(row, end)) for row, end in found]

    def _infos(self, row: int, episode: Episode) -> Mapping[str, float]:
        env = row // self._agents
        if (version := self._versions[env]) == UNKNOWN:
            return episode.infos
        part = slice(env * self._agents, (env + 1) * self._agents)
        lead = self._returns[row] - self._returns[part][self._opposed[part]].mean()
        win = float(np.sign(lead) + 1) / 2
        own = {WIN: win}
        if version:
            own[OPPONENT] = float(version)
            if self._by_age:
                own[f"{WIN}.quarter{-(-4 * version // self._newest)}"] = win
        return merge_infos(own, episode.infos)
