"""A blocking client of an env-server: the shortest way to step its environments, and the reference for others.

with EnvClient(context, "tcp://127.0.0.1:5550", {"id": "CartPole-v1"}, num_envs=8, seed=1) as envs:
    rows = envs.reset()                           # [N] of step_record(envs.spec)
    rows, episodes, infos = envs.step(actions)    # actions [N, *envs.spec.action.shape]
"""

from __future__ import annotations

import time
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zerobeast.common.errors import ConfigError, PeerLost, RemoteProtocolError
from zerobeast.common.transport import ClientPort, Context, Incoming, Poller, random_id
from zerobeast.common.wire.checks import is_episode
from zerobeast.common.wire.codec import pack
from zerobeast.common.wire.messages import MAX_OPTIONS_BYTES, Frames, Kind, Plane
from zerobeast.common.wire.records import action_record, step_record
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.common.wire.stream import Reply, Stream

Episodes = list[tuple[float, int]]
Infos = dict[str, Any]  #: name -> values [N, ...], _name -> [N] bool: which reported it; or name -> a map of such


class EnvClient:
    """One session of N environments. Opens in the constructor.

    Args:
      context: of this process.
      endpoint: of the env-server.
      env: settings of the environment by the names of `EnvConfig`.
      num_envs: N.
      seed: environment i starts from seed + i.
      timeout_s: how long any answer may take.
      infos: ask for the numbers in what gymnasium calls infos; env-servers of protocol version 1 have none.

    Attributes:
      spec: what one environment looks like.
      infos: of the newest answer, that of `reset` included; empty unless asked for.

    Raises:
      ConfigError: the server refuses, for instance because it does not know the environment.
      PeerLost: no answer in time, in any method, or the server lost the session.
      RemoteProtocolError: the server answers what cannot be.
    """

    def __init__(
        self,
        context: Context,
        endpoint: str,
        env: dict[str, Any],
        num_envs: int,
        seed: int,
        timeout_s: float = 60.0,
        *,
        infos: bool = False,
    ) -> None:
        self.num_envs = num_envs
        self._server = f"env-server at {endpoint}"
        self.timeout_s = timeout_s
        self._port = ClientPort(context, Plane.STEPS, endpoint, random_id(), linger_ms=200)
        self._poller = Poller([self._port])
        terms = {"env": env, "num_envs": num_envs, "seed": seed} | ({"infos": True} if infos else {})
        self._stream = Stream(self._port.sender, 0, terms, self._server)
        try:
            self._wait()
            self.spec = EnvSpec.from_wire(self._stream.terms.get("env"))
        except BaseException:
            self._port.close()
            raise
        self._rows_dtype = step_record(self.spec).dtype
        self._actions = np.zeros(num_envs, action_record(self.spec.action).dtype)
        self._rows: NDArray[Any] = np.zeros(0, self._rows_dtype)
        self._episodes: Episodes = []
        self.infos: Infos = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> NDArray[Any]:
        """Begin new episodes everywhere.

        Args:
          seed: from here on environment i is seeded with seed + i; None: go on from where their generators are.
          options: of the environments' own `reset`: values that msgpack has, 16 KiB of them at most.

        Returns:
          Their first rows, [N] of `step_record`, a new array.

        Raises:
          ConfigError: a seed that cannot be, too many options, or environments or an env-server that take none.
          LocalProtocolError: the options hold what cannot travel.
        """
        if self._stream.version == 1 and not (seed is None and options is None):
            raise ConfigError(f"{self._server} speaks protocol version 1, in which a reset has no seed and no options")
        if options is not None and (size := len(pack(options))) > MAX_OPTIONS_BYTES:
            raise ConfigError(f"options have {size} bytes in msgpack, expected at most {MAX_OPTIONS_BYTES}")
        self._request(Kind.RESET, (seed, options), ())
        return self._rows

    def step(self, actions: ArrayLike) -> tuple[NDArray[Any], Episodes, Infos]:
        """Step with actions [N, *action shape].

        Returns:
          rows: [N] of `step_record`, a new array.
          episodes: (return, length in agent steps) of the whole, unclipped episodes that ended.
          infos: as `infos`.
        """
        self._actions["action"] = actions
        self._request(Kind.STEP, (), (self._actions,))
        return self._rows, self._episodes, self.infos

    def close(self) -> None:
        """Say goodbye; the server closes the environments."""
        if self._stream.open:
            self._port.send(self._stream.bye())
        self._port.close()

    def _request(self, kind: Kind, body: tuple[Any, ...], frames: Frames) -> None:
        self._rows = np.zeros(self.num_envs, self._rows_dtype)
        self._stream.request(kind, body, frames, time.monotonic())
        self._wait()

    def _wait(self) -> None:
        """Send what is due until the stream has its answer."""
        deadline = time.monotonic() + self.timeout_s
        while not self._stream.open or self._stream.waiting:
            now = time.monotonic()
            if now > deadline:
                raise PeerLost(self._stream.complaint(self._port.malformed, self.timeout_s))
            due = self._stream.due(now)
            if due and self._port.send(due[0], *due[1]):
                self._stream.sent(now)
            # An absent server takes nothing: look again soon instead of spinning on a request that is due.
            self._poller.wait(min(max(self._stream.deadline() - now, 0.01), deadline - now))
            while message := self._port.receive():
                self._take(message)

    def _take(self, message: Incoming) -> None:
        header = message.header
        if header.slot != self._stream.slot:
            self._port.refuse(RemoteProtocolError(f"slot {header.slot}, expected {self._stream.slot}", "slot"))
            return
        if header.kind is Kind.OBS and self._stream.expects(header):
            if not message.into(self._rows):
                raise RemoteProtocolError(f"OBS: expected {self._rows.nbytes} bytes of step rows", "payload")
            episodes, infos = header.body
            self._episodes, self.infos = [_episode(entry) for entry in episodes], infos or {}
            _check_infos(self.infos, self.num_envs)
        if self._stream.accept(header, time.monotonic()) is Reply.LOST:
            raise PeerLost(f"the {self._server} has lost this session and its episodes")


def _episode(entry: Any) -> tuple[float, int]:
    if not is_episode(entry):
        raise RemoteProtocolError(f"an episode is [return, length], not {entry!r:.100}", "episodes")
    return float(entry[0]), int(entry[1])


def _check_infos(infos: Infos, num_envs: int) -> None:
    for name, values in infos.items():
        if isinstance(values, dict):
            _check_infos(values, num_envs)
        elif not isinstance(values, np.ndarray) or values.shape[:1] != (num_envs,):
            raise RemoteProtocolError(f"info {name!r:.100} is no array over {num_envs} environments", "payload")
