"""When the ranks of a learner act: all take the same step, or add their part of the same batch, or none does.

Each rank takes in the rollouts of its own actors. When it has something to learn from it votes, and goes on receiving
until every rank has. What then happens follows from the votes alone, so it is the same on all ranks:

    agreed = together.agree(Vote(due=..., rows=...), now)      # None: go on receiving

A rank that has nothing votes as well, `HEARTBEAT_S` after the last vote, so that one that stops, or keeps the run's
files, is heard by all.
"""

import logging
import math
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from zerobeast.common.errors import ConfigError
from zerobeast.rl.ops import ranks

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.25
PATIENCE_S = 30.0  #: without rollouts for a rank that others wait for
ROW, CHECKPOINT = 1, 2  #: what the first rank is about to write
TURN_S = 0.002  #: how long to wait for the others' votes before the next messages are received


class Act(IntEnum):
    """What all ranks do next."""

    STEP = 1  #: learn from what was added
    ADD = 2  #: add the rows that each has
    SHARE = 3  #: tell the first rank what it keeps of the run
    END = 4  #: there is nothing left to learn
    STOP = 5
    COUNT = 6  #: count what ranks have recovered


class Vote(NamedTuple):
    """What a rank could do, as integers."""

    due: int = 0  #: 1: a step is due
    rows: int = 0  #: rollouts that it could add now
    ends: int = 0  #: 1: no steps are left, and no step is due
    stops: int = 0  #: 1: it was asked to stop
    shares: int = 0  #: ROW or CHECKPOINT: the first rank is about to write it
    recovered: int = 0  #: agent steps in its store that nobody has counted yet
    env: int = 0  #: a number for what its actors play, 0 while there are none


class Agreed(NamedTuple):
    """What all ranks do, and what they have voted."""

    act: Act
    votes: list[Vote]

    @property
    def recovered(self) -> int:
        """Agent steps to count, of all ranks."""
        return sum(vote.recovered for vote in self.votes)

    @property
    def rows(self) -> int:
        """Rollouts that each rank adds: as many as the one that has the fewest."""
        return min(vote.rows for vote in self.votes)

    @property
    def shares(self) -> int:
        """As in `Vote`."""
        return max(vote.shares for vote in self.votes)


def decided(votes: Sequence[Vote]) -> Act | None:
    """What follows from the votes of all ranks; None: nothing yet.

    Raises:
      ConfigError: the actors of two ranks play different environments.
    """
    playing = {vote.env: number for number, vote in enumerate(votes) if vote.env}
    if len(playing) > 1:
        raise ConfigError(f"ranks {' and '.join(map(str, sorted(playing.values())))}: their actors play other "
                          f"environments, expected the same settings of env for all actors")  # fmt: skip
    if any(vote.stops for vote in votes):
        return Act.STOP
    if any(vote.shares for vote in votes):
        return Act.SHARE
    if any(vote.recovered for vote in votes):
        return Act.COUNT
    if all(vote.due for vote in votes):
        return Act.STEP
    if any(vote.ends for vote in votes):
        return Act.END
    return Act.ADD if all(vote.rows for vote in votes) else None


class Alone:
    """The only rank: it decides at once."""

    several = False
    vote_at = math.inf  #: when to vote although there is nothing to do

    @property
    def votes(self) -> bool:
        """Whether it waits for the votes of other ranks."""
        return False

    def wants_rows(self, *, due: bool) -> bool:
        """Whether rows should be offered."""
        return not due

    def agree(self, vote: Vote, now: float) -> Agreed | None:  # noqa: ARG002 - for those that are not alone
        """What to do next; None: wait for rollouts."""
        act = decided([vote])
        return Agreed(act, [vote]) if act else None


class Together(Alone):
    """One of several ranks."""

    several = True

    def __init__(self) -> None:
        self._round: ranks.Round | None = None
        self._stuck = False  #: the last votes led to nothing
        self._moved_at = math.inf  #: when they last led to something; infinite once that was logged
        self.vote_at = -math.inf

    @property
    def votes(self) -> bool:
        """Whether it waits for the votes of other ranks."""
        return self._round is not None

    def wants_rows(self, *, due: bool) -> bool:
        """Whether rows should be offered, by a rank whose step is due if another one's is not."""
        return self._round is None and (not due or self._stuck)

    def agree(self, vote: Vote, now: float) -> Agreed | None:
        """What to do next; None: go on receiving, and ask again. The vote that counts is the one that was sent.

        Raises:
          ConfigError: see `decided`.
          PeerLost: a rank has ended, or does not vote.
        """
        if self._round is None:
            able = any((vote.rows, vote.ends, vote.stops, vote.shares, vote.recovered)) or (
                vote.due and not self._stuck
            )
            if not able and now < self.vote_at:
                return None
            self._round = ranks.Round(vote, "votes")
        found = self._round.result(TURN_S)
        if found is None:
            return None
        self._round, self.vote_at = None, now + HEARTBEAT_S
        votes = [Vote(*numbers) for numbers in found]
        act = decided(votes)
        self._stuck = act is None
        self._look(votes, now)
        return Agreed(act, votes) if act else None

    def _look(self, votes: list[Vote], now: float) -> None:
        """Log once that a rank has had nothing for long, while others wait for it."""
        idle = [str(number) for number, vote in enumerate(votes) if not vote.rows and not vote.due]
        if not self._stuck or len(idle) == len(votes):
            self._moved_at = now
        elif now - self._moved_at > PATIENCE_S:
            self._moved_at = math.inf
            log.warning("no rollouts have come to rank %s for %g s: do actors find it?", ", ".join(idle), PATIENCE_S)
