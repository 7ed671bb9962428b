"""Admission: the one environment that this broker serves, the sessions on it, and their slots.

The first environment that an actor describes is the one, or stands for all of the run's, which are alike; a network is
built for it at once. Descriptions come from peers, so their size is checked before anything is allocated for them.
"""

import logging
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from zerobeast.common.errors import ConfigError, RemoteProtocolError, raise_as
from zerobeast.common.settings import RunConfig
from zerobeast.common.transport import index_of
from zerobeast.common.wire import EnvSpec, step_record
from zerobeast.common.wire.messages import Header
from zerobeast.common.wire.session import YIELDS_S, Session, SessionTable
from zerobeast.rl.acting.inference import Inference
from zerobeast.rl.acting.opponents import Games, Opponents
from zerobeast.rl.acting.slots import SlotRanges
from zerobeast.rl.factory import make_algorithm

log = logging.getLogger(__name__)

MAX_BATCH_BYTES = 4 << 30  #: of the largest batch
MAX_STATE_BYTES = 8 << 30  #: of all slots
MAX_SLOTS = 1 << 16
TERMS = partial(RemoteProtocolError, reason="terms")


class Client:
    """What the broker keeps for one session."""

    __slots__ = ("fresh", "games", "gone", "pending", "rows", "slot_numbers", "slots")

    def __init__(self, slots: range, games: Games | None = None) -> None:
        self.slots = slots
        self.slot_numbers: NDArray[np.int64] = np.arange(slots.start, slots.stop)
        self.rows, self.games = len(slots), games
        self.fresh = True  #: has not sent a request yet: its slots hold what another session left
        self.pending = False  #: one of its requests is in a batch
        self.gone = False  #: left while pending: its slots are free after that batch


class Sessions:
    """Admits sessions. `seed` is for sampling actions."""

    def __init__(self, config: RunConfig, epoch: int, *, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        self.table: SessionTable[Client] = SessionTable(epoch)
        self.policy: Inference | None = None
        self._opponents: Opponents | None = None  #: if the run has any
        self._config = config
        self._device, self._dtype, self._seed = device, dtype, seed
        self._ranges = SlotRanges(0)
        self._built_at = 0.0

    def agree(self, terms: dict[str, Any], now: float, *, served: bool = True, settled: bool) -> tuple[Inference, int]:
        """Check what a HELLO asks for, and build the policy for the first that can be served.

        Args:
          terms: of the HELLO.
          now: the time.
          served: whether there are weights to act with.
          settled: whether the learner has learned from this environment. Before that, another one takes its place and
            ends all sessions once no client is left, or none has sent a request for YIELDS_S; without weights requests
            prove nothing, so then YIELDS_S after the policy was built.

        Returns:
          the policy, and how many environments a request of this session has.

        Raises:
          RemoteProtocolError: this broker cannot serve it; the message is for the client.
        """
        rows, most = terms.get("num_envs"), self._config.broker.max_batch_rows
        if type(rows) is not int or not 1 <= rows <= most:
            raise TERMS(f"num_envs {str(rows)[:20]}: expected 1 to {most}, the broker's broker.max_batch_rows")
        with raise_as(TERMS, "", ConfigError):
            self._config.env.opponent_rows(rows)
        theirs = EnvSpec.from_wire(terms.get("env"))
        env = theirs.among(self._config.env.id)
        differs = self.policy is not None and env != self.policy.algorithm.env
        if differs and not settled and not self._in_use(now, served=served):
            self.policy, self.table = None, SessionTable(self.table.epoch)
        if self.policy is None:
            self._built_at = now
            self.policy = self._build(env, now)
            self._ranges = SlotRanges(min(MAX_SLOTS, MAX_STATE_BYTES // self.policy.bytes_per_slot))
        elif env != self.policy.algorithm.env:
            sentence = _difference(theirs.env_id, env, self.policy.algorithm.env)
            raise RemoteProtocolError(sentence, "terms" if settled else "busy")
        return self.policy, rows

    def _in_use(self, now: float, *, served: bool) -> bool:
        """Whether a client is there that has just described the environment, or has sent requests that are answered."""
        times = [(session.asked_at or session.opened_at) if served else self._built_at for session in self.table]
        return bool(times) and now - max(times) <= YIELDS_S

    def admit(self, header: Header, rows: int, now: float) -> Session[Client] | None:
        """The session of an accepted HELLO, new or existing; None if there is no room."""
        session = self.table.of(header)
        if session is not None and session.state.rows == rows:
            return session
        if session is not None:
            self.end(session)
        slots = None if self.table.full else self._allocate(rows)
        if slots is None:
            return None
        opposed = self._config.env.opponent_rows(rows, index_of(header.sender) + header.slot)
        games = None if opposed is None else Games(opposed, self._config.env.agents)
        return self.table.open(header, Client(slots, games), now)

    def leave(self, sender: int) -> None:
        for session in self.table.leave(sender):
            self.end(session)

    def bye(self, header: Header) -> None:
        if session := self.table.of(header):
            self.end(session)

    def end(self, session: Session[Client]) -> None:
        """Drop a session; its slots can be reused once no batch writes to them."""
        self.table.close(session)
        if session.state.pending:
            session.state.gone = True
        else:
            self._ranges.release(session.state.slots)

    def enter(self, session: Session[Client], start: int) -> list[int] | None:
        """Note that the session's rows are in the batch from `start` on, and complete them.

        Returns:
          For each environment the agent steps of the version that acts for the other side; None if there is none.
        """
        assert self.policy is not None, "a session exists, so its policy does"
        client, batch = session.state, self.policy.batch
        rows = slice(start, start + client.rows)
        batch.slots[rows] = client.slot_numbers
        if client.fresh:
            batch.first[rows] = 1
        client.fresh, client.pending = False, True
        if client.games is None or self._opponents is None:
            return None
        batch.sides[rows] = client.games.begin(batch.first[rows], self._opponents)
        return [self._opponents.steps[number] for number in client.games.numbers.tolist()]

    def renew_opponents(self, now: float) -> None:
        """Read another past version, if it is time."""
        if self._opponents is not None:
            self._opponents.renew(now, [each.state.games for each in self.table if each.state.games is not None])

    def finish_request(self, session: Session[Client]) -> bool:
        """Note that the session's request is computed; returns False if no client waits for the answer any more."""
        session.state.pending = False
        if session.state.gone:
            self._ranges.release(session.state.slots)
        return not session.state.gone

    def _allocate(self, rows: int) -> range | None:
        assert self.policy is not None, "agree() comes before admit()"
        slots = self._ranges.allocate(rows)
        if slots is None:
            return None
        try:
            self.policy.reserve(slots.stop)
        except RuntimeError as error:  # the device has no memory left for another client
            log.warning("no room for %d more environments: %s", rows, error)
            self._ranges.release(slots)
            return None
        return slots

    def _build(self, env: EnvSpec, now: float) -> Inference:
        most = self._config.broker.max_batch_rows
        size = env.frame_stack * step_record(env, packed=False).row_bytes
        if most * size > MAX_BATCH_BYTES:
            what = f"{most} observations (broker.max_batch_rows) of {size} bytes"
            raise TERMS(f"{env.env_id}: {what}, expected at most {MAX_BATCH_BYTES} bytes")
        unbuilt = raise_as(TERMS, f"{env.env_id}: the network cannot act on it", RuntimeError, ValueError, MemoryError)
        with raise_as(TERMS, "", ConfigError), unbuilt:  # whatever torch raises for shapes that a peer made up
            algorithm = make_algorithm(self._config, env)
            torch.set_default_dtype(torch.float32)  # whatever a file that was imported for it has set
            policy = Inference(algorithm, max_rows=most, device=self._device, dtype=self._dtype, seed=self._seed)
            self._opponents = Opponents(self._config, policy, now) if self._config.env.opponent else None
        return policy


def _difference(env_id: str, theirs: EnvSpec, ours: EnvSpec) -> str:
    name, value, expected = theirs.difference(ours)
    alike = "environments of one run have to be alike, as with env.pad_obs and env.pad_actions"
    advice = "start another broker for it" if env_id == theirs.env_id else alike
    return f"environment {env_id}: {name} is {value}, this broker serves {ours.env_id} with {expected}; {advice}"
