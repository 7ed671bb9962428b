"""The share of a cluster's environments that one env-server hosts, or is to host again."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

from zerobeast.clients.env_session import EnvSession, Mask
from zerobeast.common.errors import BeastError, ConfigError, PeerLost, RemoteProtocolError
from zerobeast.common.transport import Context
from zerobeast.common.transport.lookup import Lookup
from zerobeast.common.wire import MAX_ENV_SEED, EnvSeeds, EnvSpec

log = logging.getLogger(__name__)

SILENCE_S = 10.0  #: after this much silence of an env-server, an attempt to open a session there is given up
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 8.0  #: before the second attempt in a row, doubling up to the longest


class ClusterPart:
    """Some of the environments. They are *here* while a session has them and its env-server answers.

    Once they are lost, attempts follow until a session has them again: each looks up the endpoint, opens a session,
    and resets its environments. `tend` does all of this, and never waits.

    Args:
      context: the context of this process.
      terms: the terms of HELLO.
      slot: which environments of the cluster.
      home: index of the endpoint they belong to.
      place: returns where the next attempt is made: index and endpoint.
    """

    def __init__(
        self,
        context: Context,
        terms: dict[str, Any],
        slot: slice,
        home: int,
        place: Callable[[ClusterPart], tuple[int, str]],
    ) -> None:
        self._context, self._terms, self._place = context, terms, place
        self.slot, self.home = slot, home
        self.here = False
        self.asked = False  #: whether an answer is outstanding
        self.answered = False  #: the newest request, or they have come back since it was begun
        self.refusal: ConfigError | None = None  #: of the newest request
        self.trouble: BeastError | None = None  #: why they were lost, or why an attempt failed
        self.attempts = 0  #: since they were lost
        self.spec: EnvSpec | None = None
        self._resets = False
        self._asks: tuple[EnvSeeds, dict[str, Any] | None] = (None, None)  #: of a reset of all in progress
        self._session: EnvSession | None = None
        self._seek(0.0)

    @property
    def size(self) -> int:
        """How many environments these are."""
        return int(self.slot.stop - self.slot.start)

    @property
    def session(self) -> EnvSession:
        """The session that has them."""
        assert self._session is not None, "they are here"
        return self._session

    @property
    def ports(self) -> list[Any]:
        """What to poll."""
        return [self._session.port] if self._session else []

    def pause_s(self) -> float:
        """Seconds until `tend` has something to do, unless a message arrives first."""
        return self._session.pause_s() if self._session else FIRST_PAUSE_S / 4  # a name is looked up in another thread

    def begin_reset(self, seed: EnvSeeds, options: dict[str, Any] | None, mask: Mask | None) -> None:
        """As `EnvSession.begin_reset`; environments that come back during a reset of all take part in it."""
        self._asks = (seed, options) if mask is None else (None, None)
        if self.here:
            self.session.begin_reset(seed, options, mask)
            self.asked = True
            self.tend()

    def begin_step(self, actions: Any) -> None:
        """As `EnvSession.begin_step`."""
        self._asks = (None, None)
        if self.here:
            self.session.begin_step(actions)
            self.asked = True
            self.tend()

    def tend(self) -> None:
        """Send and receive whatever is possible now."""
        try:
            if self._session is None:
                self._send_hello()
            elif self._session.advance():
                self._get_on()
            elif not self.here and time.monotonic() > self._patient_until and not self.session.works(SILENCE_S):
                raise PeerLost(self.session.complaint(SILENCE_S))
        except ConfigError as error:
            if self.asked:
                self.asked, self.refusal = False, error
            else:
                self.lose(error)
                self.refusal = error if self._asks != (None, None) else None
        except (PeerLost, RemoteProtocolError) as error:
            self.lose(error)

    def lose(self, trouble: BeastError) -> None:
        """Give up the session."""
        if self.here:
            log.warning("%d environments are lost: %s", self.size, trouble)
            self.attempts = 0
        elif not self.attempts:
            log.warning("%s; further attempts follow", trouble)
        self.close()
        self.here = self.asked = self.answered = self._resets = False
        self.trouble, self.refusal = trouble, None
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self.attempts - 1)) if self.attempts else 0.0
        self.attempts += 1
        self._seek(pause_s)

    def complaint(self, silence_s: float) -> str:
        """A sentence on what is wrong with the env-server after `silence_s` without an answer."""
        if self._session is None:
            return f"the name of the env-server has not been found for {silence_s:g} s"
        return self._session.complaint(silence_s)

    def close(self) -> None:
        """Send BYE."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _seek(self, pause_s: float) -> None:
        self.host, endpoint = self._place(self)
        self._lookup, self._hello_at = Lookup(endpoint), time.monotonic() + pause_s

    def _send_hello(self) -> None:
        if time.monotonic() < self._hello_at:
            return
        self._lookup.start()
        if found := self._lookup.take():
            if self.spec is not None:  # the first session's seed would repeat its first episodes
                self._terms["seed"] = secrets.randbelow(MAX_ENV_SEED)
            self._session = EnvSession(self._context, str(found[0]), self._terms)
            self._patient_until = time.monotonic() + SILENCE_S

    def _get_on(self) -> None:
        """Go on, now that nothing in the session is unanswered."""
        if self.asked:
            self.asked, self.answered = False, True
        elif self._resets:
            self.here, self.answered, self._resets, self.attempts = True, True, False, 0
            log.warning("%d environments are here again, at the %s", self.size, self.session.server)
        elif not self.here and self.spec is None:
            self.here, self.spec = True, self.session.spec  # the first session: the user resets it
        elif not self.here:
            if self.session.spec != self.spec:
                raise ConfigError(f"the {self.session.server} has {self.session.spec}, expected {self.spec}")
            self.session.begin_reset(*self._asks)
            self._resets = True
            self.session.advance()
