"""The ranks of a learner: which one a process is, how they meet, and when they act.

All take the same step, or add their part of the same batch, or none does.

Each rank takes in the rollouts of its own actors. When it has something to learn from it votes, and goes on receiving
until every rank has. What then happens follows from the votes alone, so it is the same on all ranks:

    agreed = together.agree(Vote(due=..., rows=...), now)      # None: go on receiving

A rank that has nothing votes as well, `HEARTBEAT_S` after the last vote, so that the vote of one that stops, or
keeps the run's files, reaches all.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import torch

from zerobeast.common.config.load import differences
from zerobeast.common.config.process import Instance
from zerobeast.common.config.settings_table import is_bound, topic_of
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import ConfigError, PeerLost
from zerobeast.common.settings import RunConfig
from zerobeast.common.text import as_text
from zerobeast.common.transport import Keys
from zerobeast.rl.nets import pick_device
from zerobeast.rl.ops import ranks
from zerobeast.rl.ops.meeting import join
from zerobeast.services.learner.checkpoint import pack_state, unpack_state
from zerobeast.version import __version__

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.25
ROW, CHECKPOINT = 1, 2  #: what the first rank is about to write
TURN_S = 0.002  #: how long to wait for the others' votes before the next messages are received


@dataclass(frozen=True)
class Rank:
    """A process that is the learner, alone or with others."""

    number: int
    endpoint: str  #: that it binds: the one of its number in `learner.rank_endpoints`, if there are any

    @classmethod
    def of(cls, config: RunConfig, instance: Instance, environ: Mapping[str, str]) -> Rank:
        """The rank of this process: its --index, or what torchrun has given it.

        Raises:
          ConfigError: with `learner.ranks` it has no number.
        """
        count = config.learner.ranks
        index = environ.get("RANK", "") if instance.index is None else str(instance.index)
        if count > 1 and (not index.isdecimal() or int(index) >= count):
            expected = f"0 to {count - 1}, because learner.ranks is {count}, from --index or torchrun's RANK"
            raise ConfigError(path="index", value=index or None, expected=expected)
        number = int(index) if count > 1 else 0
        endpoints = config.learner.endpoints
        return cls(number, endpoints[number] if number < len(endpoints) else endpoints[0])

    def device(self, config: RunConfig, environ: Mapping[str, str]) -> torch.device:
        """What this rank learns on: of several GPUs, each rank of a machine has its own.

        Raises:
          ConfigError: as `pick_device`.
        """
        device = pick_device(config.learner.device, "learner.device")
        if config.learner.ranks == 1 or device.type == "cpu" or device.index is not None:
            return device
        return torch.device("cuda", int(environ.get("LOCAL_RANK", self.number)) % torch.cuda.device_count())

    def join(self, config: RunConfig, device: str, stopped: Callable[[], bool], environ: Mapping[str, str]) -> None:
        """Meet the other ranks.

        Args:
          config: of the run.
          device: kind of device of this rank.
          stopped: whether to give up.
          environ: of this process.

        Raises:
          ConfigError: they are of other settings or another version, or they cannot meet there.
          PeerLost: one does not come, or does not know the secret of the others: the learner's key, if there are keys.
        """
        settings, security, meeting = config.learner, config.security, find_meeting(config, environ)
        if meeting.startswith("tcp:"):
            Endpoint.parse(meeting).refuse_open(guarded=bool(security.keys) or security.insecure)
        secret = Keys(security.keys, "learner", security.secret).secret if security.keys else b""
        alike = {"version": __version__, "name": config.name, "learner.ranks": settings.ranks, "algo": config.algo}
        alike |= {"device": device}
        given = differences(config).items()
        alike |= {path: value for path, value in given if not topic_of(path) or is_bound(path)}
        identity = {name: as_text(value) for name, value in alike.items()}
        join(self.number, settings.ranks, meeting, settings.rank_timeout_s, identity, secret, stopped)


def find_meeting(config: RunConfig, environ: Mapping[str, str]) -> str:
    """Where ranks meet: as configured, or as torchrun has it.

    Raises:
      ConfigError: neither says.
    """
    if config.learner.meeting:
        return config.learner.meeting
    host, port = (environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    if not host or not port:
        why = "because torchrun's MASTER_ADDR and MASTER_PORT are not set either"
        raise ConfigError(f"learner.meeting is empty: expected tcp://host:port of the first rank, {why}")
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def read_on_first_rank(read: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    """What the first rank reads, on all of them; `read` may take long."""
    own = ranks.run_patiently(read, "reading")
    found: dict[str, Any] | None = (
        unpack_state(ranks.broadcast_first(pack_state(own), "checkpoint")) if ranks.size() > 1 else own
    )
    return found


class Act(IntEnum):
    """What all ranks do next."""

    STEP = 1  #: learn from what was added
    ADD = 2  #: add the rows that each has
    SHARE = 3  #: send the first rank what it keeps of the run
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
    env: int = 0  #: a number for what its rollouts are of, 0 while there are none


class Agreement(NamedTuple):
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


def decide(votes: Sequence[Vote]) -> Act | None:
    """What follows from the votes of all ranks; None: nothing yet.

    Raises:
      PeerLost: two ranks have rollouts of different environments. Another start may have other actors.
    """
    playing = {vote.env: number for number, vote in enumerate(votes) if vote.env}
    if len(playing) > 1:
        raise PeerLost(f"ranks {' and '.join(map(str, sorted(playing.values())))}: their actors play other "
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


class SoloCoordinator:
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

    def agree(self, vote: Vote, now: float) -> Agreement | None:  # noqa: ARG002 - for those that are not alone
        """What to do next; None: wait for rollouts."""
        act = decide([vote])
        return Agreement(act, [vote]) if act else None


class RankCoordinator(SoloCoordinator):
    """One of several ranks."""

    several = True

    def __init__(self) -> None:
        self._round: ranks.Round | None = None
        self._stuck = False  #: the last votes led to nothing
        self.vote_at = -math.inf

    @property
    def votes(self) -> bool:
        """Whether it waits for the votes of other ranks."""
        return self._round is not None

    def wants_rows(self, *, due: bool) -> bool:
        """Whether rows should be offered, by a rank whose step is due if another one's is not."""
        return self._round is None and (not due or self._stuck)

    def agree(self, vote: Vote, now: float) -> Agreement | None:
        """What to do next; None: go on receiving, and ask again. The vote that counts is the one that was sent.

        Raises:
          PeerLost: a rank has ended, or does not vote; or see `decide`.
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
        act = decide(votes)
        self._stuck = act is None
        return Agreement(act, votes) if act else None
