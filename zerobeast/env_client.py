"""A blocking client of an env-server: the shortest way to step its environments, and the reference for others.

with EnvClient(context, "tcp://127.0.0.1:5550", {"id": "CartPole-v1"}, num_envs=8, seed=1) as envs:
    rows = envs.reset()                    # [N] of step_record(envs.spec)
    rows, episodes = envs.step(actions)    # actions [N, *envs.spec.action.shape]
"""

from __future__ import annotations

import time
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zerobeast.common.errors import PeerLost, RemoteProtocolError
from zerobeast.common.transport import ClientPort, Context, Incoming, Poller, random_id
from zerobeast.common.wire.checks import is_episode
from zerobeast.common.wire.messages import Frames, Header, Kind, Plane
from zerobeast.common.wire.records import action_record, step_record
from zerobeast.common.wire.specs import EnvSpec
from zerobeast.common.wire.stream import Reply, Stream

Episodes = list[tuple[float, int]]


class EnvClient:
    """One session of N environments. Opens in the constructor.

    Args:
      context: of this process.
      endpoint: of the env-server.
      env: settings of the environment by the names of `EnvConfig`.
      num_envs: N.
      seed: environment i starts from seed + i.
      timeout_s: how long any answer may take.

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
    ) -> None:
        self.num_envs = num_envs
        self._server = f"env-server at {endpoint}"
        self.timeout_s = timeout_s
        self._port = ClientPort(context, Plane.STEPS, endpoint, random_id(), linger_ms=200)
        self._poller = Poller([self._port])
        terms = {"env": env, "num_envs": num_envs, "seed": seed}
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def reset(self) -> NDArray[Any]:
        """Begin new episodes everywhere and return their first rows, [N] of `step_record`, a new array."""
        return self._request(Kind.RESET, ())[0]

    def step(self, actions: ArrayLike) -> tuple[NDArray[Any], Episodes]:
        """Step with actions [N, *action shape].

        Returns:
          rows: [N] of `step_record`, a new array.
          episodes: (return, length in agent steps) of the whole, unclipped episodes that ended.
        """
        self._actions["action"] = actions
        return self._request(Kind.STEP, (self._actions,))

    def close(self) -> None:
        """Say goodbye; the server closes the environments."""
        stream = self._stream
        if stream.open:
            self._port.send(Header(Kind.BYE, stream.sender, stream.slot, stream.epoch, stream.seq))
        self._port.close()

    def _request(self, kind: Kind, frames: Frames) -> tuple[NDArray[Any], Episodes]:
        self._rows = np.zeros(self.num_envs, self._rows_dtype)
        self._stream.request(kind, (), frames, time.monotonic())
        self._wait()
        return self._rows, self._episodes

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
            self._episodes = [_episode(entry) for entry in header.body[0]]
        if self._stream.accept(header, time.monotonic()) is Reply.LOST:
            raise PeerLost(f"the {self._server} has lost this session and its episodes")


def _episode(entry: Any) -> tuple[float, int]:
    if not is_episode(entry):
        raise RemoteProtocolError(f"an episode is [return, length], not {entry!r:.100}", "episodes")
    return float(entry[0]), int(entry[1])
