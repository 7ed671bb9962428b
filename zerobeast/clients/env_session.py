"""A non-blocking session with an env-server: `EnvClient` waits for one, a cluster uses many."""

import time
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import ConfigError, EnvError, PeerLost, RemoteProtocolError, raise_as
from zerobeast.common.transport import ClientPort, Context, Incoming, random_id
from zerobeast.common.wire import EnvSeeds, EnvSpec, Space, action_record, iterate_arrays, short, step_record
from zerobeast.common.wire.bits import unpack_rows
from zerobeast.common.wire.codec import pack
from zerobeast.common.wire.episodes import Episode, LostEpisode, ends_of, read_lost
from zerobeast.common.wire.messages import MAX_OPTIONS_BYTES, Frames, Kind, Plane
from zerobeast.common.wire.stream import Reply, Stream
from zerobeast.services.actor.planes import receive_rows
from zerobeast.services.envserver.spaces import fit_value, split_arrays

UNSENT_S = 0.01  #: nothing can be sent to an absent server: retry a due request after this long instead of spinning

Episodes = list[tuple[float, int]]
Infos = dict[str, Any]  #: name -> values [N, ...], _name -> [N] bool: which reported it; or name -> a nested map
Mask = NDArray[np.bool_]  #: [N]


class EnvAnswer(NamedTuple):
    """The result of one step or reset."""

    rows: NDArray[Any]  #: [N] of `step_record`, not packed
    infos: Infos
    episodes: Episodes  #: whole ones that ended
    lost: Mask  #: whose env-server does not answer: their rows repeat the last ones, with no reward, end or start


class EnvSource(Protocol):
    """N environments that answer in rows; each method does what it does in `EnvClient`."""

    spec: EnvSpec

    def begin_reset(self, seed: EnvSeeds, options: dict[str, Any] | None, mask: Mask | None) -> None: ...
    def begin_step(self, actions: Any) -> None: ...
    def finish(self) -> EnvAnswer: ...
    def close(self) -> None: ...


class EnvSession:
    """N environments of one env-server. Call `advance` until it returns True, then begin the next request.

    Args:
      context: the context of this process.
      endpoint: the endpoint of the env-server.
      terms: the terms of HELLO, including `num_envs`.

    Attributes:
      port: what to poll between two calls of `advance`.
      spec: what one environment looks like; known once `advance` has returned True for the first time.
      rows, episodes, infos: of the newest answer; rows are a new array each time, and not packed.
      ends: the whole episode of each row that ends one, None if that was no whole episode.
      lost: episodes that environments have failed in.
    """

    spec: EnvSpec

    def __init__(self, context: Context, endpoint: str, terms: dict[str, Any]) -> None:
        self.server = f"env-server at {endpoint}"
        self.num_envs: int = terms["num_envs"]
        self.port = ClientPort(context, Plane.STEPS, endpoint, random_id(), linger_ms=200)
        self._stream = Stream(self.port.sender, 0, terms, self.server)
        self._welcomed = self._played = False
        self._first: tuple[Any, ...] | None = None  #: body of the first RESET, until it is answered
        self._actions: NDArray[Any] = np.zeros(0)
        self.rows: NDArray[Any] = np.zeros(0)
        self.episodes: Episodes = []
        self.ends: tuple[Episode | None, ...] = ()
        self.lost: tuple[LostEpisode, ...] = ()
        self.infos: Infos = {}
        self._closed = False

    def begin_reset(self, seed: EnvSeeds, options: dict[str, Any] | None, mask: Mask | None = None) -> None:
        """Begin an `EnvClient.reset`, without waiting for the answer."""
        if options is not None and (size := len(pack(options))) > MAX_OPTIONS_BYTES:
            raise ConfigError(f"options have {size} bytes in msgpack, expected at most {MAX_OPTIONS_BYTES}")
        self._request(Kind.RESET, (seed, options, None if mask is None else mask.tolist()), ())

    def begin_step(self, actions: Any) -> None:
        """Begin an `EnvClient.step`, without waiting for the answer."""
        fill_actions(self._actions["action"], self.spec.action, actions)
        self._request(Kind.STEP, (), (self._actions,))

    def advance(self) -> bool:
        """Send what is due and receive what has arrived; True if the session is open and nothing is unanswered.

        Raises:
          ConfigError: the server refuses.
          PeerLost: it has lost this session.
          RemoteProtocolError: it sent an invalid answer.
        """
        now = time.monotonic()
        due = self._stream.due(now)
        if due and self.port.send(due[0], *due[1]):
            self._stream.note_sent(now)
        while message := self.port.receive():
            self._take(message)
        return self._stream.open and not self._stream.waiting

    def pause_s(self) -> float:
        """Seconds until there is something to do, unless a message arrives first."""
        return max(self._stream.deadline() - time.monotonic(), UNSENT_S)

    def works(self, limit_s: float) -> bool:
        """Whether the server has room for this session, and owes no sign of life for longer than `limit_s`."""
        return not self._stream.busy and self._stream.silent_s(time.monotonic()) <= limit_s

    def complaint(self, silence_s: float) -> str:
        """A sentence on what is wrong with the server after `silence_s` without an answer."""
        return self._stream.complaint(self.port.malformed, silence_s)

    def close(self) -> None:
        """Send BYE; the server closes the environments."""
        if self._closed:
            return
        self._closed = True
        if self._stream.heard_at >= 0:
            self.port.send(self._stream.bye())
        self.port.close()

    def _request(self, kind: Kind, body: tuple[Any, ...], frames: Frames) -> None:
        if self._stream.waiting or self._first is not None:
            raise PeerLost(f"the {self.server} still owes the answer to an earlier request: open another session")
        first = kind is Kind.RESET and not self._played
        if not (first or self._stream.open):
            raise PeerLost(f"the {self.server} has lost this session and its episodes: open another one")
        self._first = body if first else None
        if self._stream.open:
            self._stream.request(kind, body, frames, time.monotonic())

    def _take(self, message: Incoming) -> None:
        header = message.header
        if header.slot != self._stream.slot:
            self.port.refuse(RemoteProtocolError(f"slot {header.slot}, expected {self._stream.slot}", "slot"))
            return
        if header.kind is Kind.OBS and self._stream.expects(header):
            self._read(message)
        try:
            reply = self._stream.accept(header, time.monotonic())
        except ConfigError:  # after a refusal another request may follow
            self._first = None
            raise
        if reply is Reply.ANSWER:
            self._played, self._first = True, None
        if self._played and reply in (Reply.LOST, Reply.WELCOME):
            raise PeerLost(f"the {self.server} has lost this session and its episodes")
        if reply is Reply.WELCOME:
            self._open()

    def _read(self, message: Incoming) -> None:
        """Take the answer to a request."""
        rows = np.zeros(self.num_envs, step_record(self.spec).dtype)
        receive_rows(message, rows, self.spec)
        self.rows = unpack_rows(rows, self.spec)
        episodes, infos = message.header.body
        _check_infos(infos or {}, self.num_envs)
        self.infos = infos or {}
        self.ends, self.lost = ends_of(episodes, self.port.refuse), read_lost(episodes)
        self.episodes = [(episode.value, episode.length) for episode in self.ends if episode]

    def _open(self) -> None:
        """Begin the session; until the first RESET is answered this may happen again, since nothing can be lost."""
        spec = EnvSpec.from_wire(self._stream.terms.get("env"))
        if self._welcomed and spec != self.spec:
            raise ConfigError(f"the {self.server} has {spec}, expected {self.spec} as before")
        self._welcomed, self.spec = True, spec
        self._actions = np.zeros(self.num_envs, action_record(spec.action).dtype)
        if self._first is not None:
            self._stream.request(Kind.RESET, self._first, (), time.monotonic())


def fill_actions(into: NDArray[Any], space: Space, actions: Any, *, own: bool = False) -> None:
    """Write actions into the array from which they are sent.

    Args:
      into: [N, *shape]; if the space has several parts, laid out as by `field_of`.
      space: the action space.
      actions: [N, *shape]; if the space has several parts, a map or tuple of arrays.
      own: choices are given as the environment counts them, not from 0.

    Raises:
      ConfigError: they have the wrong shape or kind, or are out of range.
    """
    with raise_as(ConfigError, "", EnvError):
        parts = zip(split_arrays("action", space, actions), iterate_arrays(space, into), strict=True)
        for (path, array, value), (_, place) in parts:
            place[...] = fit_value(path, value, array, own=own, lead=place.shape[:1])


def _check_infos(infos: Infos, num_envs: int) -> None:
    for name, values in infos.items():
        if not isinstance(name, str):
            raise RemoteProtocolError(f"info {short(name)} is no name", "payload")
        is_mask = isinstance(mask := infos.get(f"_{name}"), np.ndarray) and mask.dtype == np.bool_
        if mask is not None and not (is_mask and mask.shape == (num_envs,)):
            raise RemoteProtocolError(f"info {short('_' + name)} are not {num_envs} booleans", "payload")
        if isinstance(values, dict):
            _check_infos(values, num_envs)
        elif not isinstance(values, np.ndarray) or values.shape[:1] != (num_envs,):
            raise RemoteProtocolError(f"info {short(name)} is no array over {num_envs} environments", "payload")
