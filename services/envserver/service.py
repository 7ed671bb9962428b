"""The env-server: one session per HELLO, each with its own vector environment. One loop, one port.

Requests are begun in order of arrival and answered as they finish, so that environments in worker processes or C++
threads step in parallel and a slow one holds up no other.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from zerobeast.common.config.process import Instance
from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import EnvError, RemoteProtocolError, WrongInterface, raise_as
from zerobeast.common.health.sliding_window import SlidingWindow
from zerobeast.common.service.base import Service
from zerobeast.common.settings import RunConfig, SecurityConfig
from zerobeast.common.transport import Incoming, Poller, ServerPort, random_id
from zerobeast.common.wire import action_record
from zerobeast.common.wire.episodes import is_lost
from zerobeast.common.wire.messages import Header, Kind, Plane, Reason
from zerobeast.common.wire.session import Arrival, Session, SessionTable
from zerobeast.services.envserver.catalogue import make_vector_env
from zerobeast.services.envserver.infos import InfoTable
from zerobeast.services.envserver.sessions import (
    MAX_SESSIONS,
    HostedEnvs,
    ResetRequest,
    SessionRequest,
    check_capacity,
    sessions_to_advance,
)
from zerobeast.services.envserver.spaces import make_legal
from zerobeast.services.envserver.vector import VectorEnv

log = logging.getLogger(__name__)

MAX_REQUESTS_PER_TURN = 256  #: so that a flood cannot keep the loop from answering
CLOSE_LIMIT_S = 2.0  #: for environments to close themselves before they are killed
RATE_SPAN_S = 5.0


class EnvServer(Service):
    """Hosts environments for every client that sends HELLO."""

    role = "envserver"
    work = ("agent_steps", "sessions", "sessions_making")

    def __init__(self, config: RunConfig, instance: Instance) -> None:
        del instance  # one env-server is like another
        super().__init__()
        self.settings = config.envserver
        self._security = config.security
        self.table: SessionTable[HostedEnvs] = SessionTable(random_id(), MAX_SESSIONS)
        self._files: tuple[int, ...] = ()
        self._leaving: list[tuple[VectorEnv, float]] = []
        self._agent_steps = 0
        self._episodes = self._lost = 0
        self._past = Counter[str]()  #: counts of closed sessions
        self._window = SlidingWindow(RATE_SPAN_S)
        self._make_at = 0.0  #: when this thread next makes some of the environments that it has to make

    def open(self) -> None:
        local = Endpoint.parse(self.settings.endpoint).is_local  # its only plane: keys are of no use on a local one
        context, epoch = self.open_context(SecurityConfig() if local else self._security), self.table.epoch
        self.port = ServerPort(context, Plane.STEPS, self.settings.endpoint, epoch=epoch)
        self.resources.callback(self.port.close)
        self.poller = Poller([self.port])

    def take(self) -> None:
        for _ in range(MAX_REQUESTS_PER_TURN):
            message = self.port.receive()
            if message is None:
                break
            self._handle(message)
        self._advance()
        for sender in self.port.departures():
            for session in self.table.leave(sender):
                self._release(session)
        self._watch()

    def tick(self, now: float) -> None:
        """Close sessions that no client uses, and make sure that closed environments end."""
        limit_s = self.settings.step_timeout_s
        for session in self.table:
            session.state.env.tend(now, limit_s if now - self.awake_since > limit_s else math.inf)
        for session in self.table.find_unused(now, self.awake_since):
            if session.welcome is not None:  # otherwise this server is still making its environments
                self._end(session)
        self._leaving = [
            (env, since) for env, since in self._leaving if not env.release(force=now - since > CLOSE_LIMIT_S)
        ]

    def works_elsewhere(self) -> bool:
        return any(session.state.request for session in self.table)

    def idle(self) -> bool:
        """Whether no environments owe an answer; making them may take long, and `step_timeout_s` bounds it."""
        return not any(session.state.request for session in self.table if session.welcome is not None)

    def deadline(self) -> float:
        """When this thread goes on with environments of its own, if any of them has work."""
        return self._make_at if any(session.state.has_inline_work for session in self.table) else math.inf

    def drain(self) -> None:
        """Send BYE to every client, so that it connects elsewhere at once."""
        for session in self.table:
            self.port.send(Header(Kind.BYE, session.sender, session.slot, self.table.epoch, session.seq))

    def close(self) -> None:
        """Release every environment, then the port."""
        for session in self.table:
            self._end(session)
        while self._leaving:
            self.tick(self.clock())
            time.sleep(0.005)
        super().close()

    def report(self) -> dict[str, Any]:
        """Numbers for the health page; rates are of the last few seconds."""
        if self.state == "starting":
            return {}
        (steps_per_s,) = self._window.per_s(self.clock(), self._agent_steps)
        envs = [session.state.env for session in self.table]
        counts = sum((env.counts() for env in envs), self._past)
        return {
            "sessions": len(self.table),
            "sessions_making": sum(session.welcome is None for session in self.table),
            "envs": sum(env.num_envs // env.agents for env in envs),
            "agent_steps": self._agent_steps,
            "episodes": self._episodes,
            "episodes_lost": self._lost,
            **{name: counts[name] for name in ("env_errors", "env_timeouts", "env_recycled", "infos_left_out")},
            "refused": self.port.refused.total(),
            "refused_by_reason": dict(self.port.refused),
            "dropped": self.port.dropped,
            "agent_steps_per_s": round(steps_per_s, 1),
        }

    def _handle(self, message: Incoming) -> None:
        header = message.header
        try:
            if header.kind is Kind.HELLO:
                self._hello(header)
            elif header.kind is Kind.BYE:
                if session := self.table.of(header):
                    self._end(session)
            elif header.kind in (Kind.RESET, Kind.STEP):
                self._request(message)
            else:
                raise RemoteProtocolError(f"an env-server takes no {header.kind.name}", "kind")
        except RemoteProtocolError as error:
            self.port.reject(header, error, epoch=self.table.epoch)

    def _hello(self, header: Header) -> None:
        session = self.table.of(header)
        if session is not None:
            self._send_welcome(session)
            return
        terms = SessionRequest.read(header.body[0])
        if not self.port.hears(header.sender):
            return  # its subscription has not arrived yet, and HELLO will be repeated
        hosted, leaving = [session.state.env for session in self.table], [env for env, _ in self._leaving]
        check_capacity(terms.num_envs // terms.env.agents, self.settings, hosted=hosted, leaving=leaving)
        with raise_as(partial(RemoteProtocolError, reason="environment"), "", EnvError):
            env = make_vector_env(terms.env, terms.num_envs, terms.seed, self.settings, masks=terms.reset_masks)
        env.infos = InfoTable(terms.num_envs) if terms.infos else None
        self._send_welcome(self.table.open(header, HostedEnvs(env, header, env_id=terms.env.id), self.clock()))

    def _request(self, message: Incoming) -> None:
        header = message.header
        session = self.table.of(header)
        if session is None:
            raise RemoteProtocolError("the env-server has no such session", "session")
        if session.state.request is not None:
            self.port.here(header, self.table.epoch)
            return
        if header.seq <= session.seq:
            if session.arrival(header.seq) is Arrival.REPEATED and session.reply is not None:
                self.port.send(session.reply[0], *session.reply[1])
            return
        begin = self._begin_of(message, session)  # before the request counts as taken
        session.arrival(header.seq)
        session.state.request, session.asked_at = header, self.clock()
        try:
            with raise_as(EnvError, f"environment {session.state.env_id!r} has failed"):
                begin()
        except EnvError as error:
            self._fail(session, error)

    def _begin_of(self, message: Incoming, session: Session[HostedEnvs]) -> Callable[[], None]:
        """A call that begins a RESET, or a STEP with legal actions. Raises RemoteProtocolError for anything else."""
        hosted, progress = session.state, message.header.body[-1]
        if progress is not None:
            if not 0 <= progress <= 1:
                raise RemoteProtocolError(f"progress: {progress}, expected a number from 0 to 1", "terms")
            hosted.env.progress = progress
        if message.header.kind is Kind.RESET:
            request = ResetRequest.read(message.header.body, hosted.env)
            if request.only is not None and session.asked_at is None:
                raise RemoteProtocolError("RESET of all environments has to come before one with a mask", "order")
            return partial(hosted.env.reset, *request)
        if session.asked_at is None:
            raise RemoteProtocolError("RESET has to come before the first STEP", "order")
        assert hosted.actions is not None
        if not message.into(hosted.actions):
            size = hosted.actions.nbytes
            raise RemoteProtocolError(f"STEP: expected one frame of {size} bytes of actions", "payload")
        return partial(hosted.env.step, make_legal(hosted.actions["action"], hosted.env.spec.action))

    def _advance(self) -> None:
        """Advance all sessions. While some play, making gets half of this thread's time, or they would crawl."""
        began = self.clock()
        for session in sessions_to_advance(self.table, make=began >= self._make_at):
            makes = session.welcome is None and session.state.env.inline
            began = self.clock()
            try:
                with raise_as(EnvError, f"environment {session.state.env_id!r} has failed"):
                    finished = session.state.env.collect()
                if finished:
                    self._answer(session)
            except EnvError as error:
                self._fail(session, error)
            if makes:
                now, plays = self.clock(), any(other.asked_at is not None for other in self.table)
                self._make_at = now + (now - began if plays else 0.0)

    def _answer(self, session: Session[HostedEnvs]) -> None:
        hosted = session.state
        request, hosted.request = hosted.request, None
        assert request is not None
        if request.kind is Kind.HELLO:
            hosted.actions = np.zeros(hosted.env.num_envs, action_record(hosted.env.spec.action).dtype)
            session.welcome, session.opened_at = {"env": hosted.env.spec.to_wire()}, self.clock()
            log.info("hosting %d x %s", hosted.env.num_envs // hosted.env.agents, hosted.env.spec.env_id)
            self._send_welcome(session)
            return
        rows, episodes = hosted.env.rows, hosted.env.episodes
        if request.kind is Kind.STEP:
            self._agent_steps += len(rows) - int(np.count_nonzero(rows["first"]))
            assert session.asked_at is not None, "it asked for this"
            self.hops.add("env_step", self.clock() - session.asked_at)
        lost = sum(map(is_lost, episodes))
        self._episodes, self._lost = self._episodes + sum(map(bool, episodes)) - lost, self._lost + lost
        body = (episodes, hosted.env.infos.beside(episodes) if hosted.env.infos else None)
        header = Header(Kind.OBS, session.sender, session.slot, self.table.epoch, session.seq, body)
        session.reply = (header, (rows,))
        self.port.send(header, rows)

    def _send_welcome(self, session: Session[HostedEnvs]) -> None:
        """Send WELCOME, or HERE while the environments are being made."""
        header = Header(Kind.WELCOME, session.sender, session.slot, self.table.epoch, session.seq)
        if session.welcome is None:
            self.port.here(header, self.table.epoch)
        else:
            self.port.send(replace(header, body=(session.welcome,)))

    def _fail(self, session: Session[HostedEnvs], error: EnvError) -> None:
        """End a session, and send the client the reason."""
        # no error in this log, since the client ends with the same sentence
        log.info("a session has failed: %s", error, exc_info=error if error.__cause__ else None)
        self._past["env_errors"] += 1
        self._end(session)
        request = Header(Kind.STEP, session.sender, session.slot, seq=session.seq)
        reason = Reason.TERMS if isinstance(error, WrongInterface) else Reason.ENVIRONMENT
        self.port.error(request, reason, str(error), epoch=self.table.epoch)

    def _end(self, session: Session[HostedEnvs]) -> None:
        self.table.close(session)
        self._release(session)

    def _release(self, session: Session[HostedEnvs]) -> None:
        env = session.state.env
        self._past += env.counts()
        with suppress(Exception):  # of a backend: nothing depends on it
            env.close()
        self._leaving.append((env, self.clock()))

    def _watch(self) -> None:
        """Poll the pipes of all environments that are hosted now."""
        files = tuple(file for session in self.table for file in session.state.env.files)
        if files != self._files:
            self._files = files
            self.poller = Poller([self.port], files)
