"""The client in `beast bench broker`: sends the requests of an actor's env groups, without any environments."""

import time
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.transport import ClientPort, Context, Incoming, Poller, random_id
from zerobeast.common.wire import EnvSpec, PolicySpec, act_record, step_record
from zerobeast.common.wire.messages import Kind, Plane
from zerobeast.common.wire.stream import Reply, Stream

MAX_WAIT_S = 0.1


class EnvGroups:
    """Env groups that request the next actions as soon as they have the last ones, always with the same observations.

    Args:
      endpoint: of the broker.
      env: describes the observations.
      groups: number of env groups, each with one request under way at a time.
      num_envs: N, environments per request.
    """

    def __init__(self, endpoint: str, env: EnvSpec, groups: int, num_envs: int) -> None:
        self._env = env
        self._port = ClientPort(Context(), Plane.INFERENCE, endpoint, random_id())
        self._poller = Poller([self._port])
        terms = {"env": env.to_wire(), "num_envs": num_envs}
        self._streams = [Stream(self._port.sender, slot, terms, f"broker at {endpoint}") for slot in range(groups)]
        self._rows = np.zeros(num_envs, step_record(env).dtype)
        self._rows["obs"] = 1  # memory that was never written would all map to one page
        self._acts: dict[int, NDArray[Any]] = {}  #: [N] of `act_record` by slot
        self.answered = [0] * groups  #: requests, by slot

    def turn(self) -> None:
        """Send a request for every idle group, wait, and receive the answers."""
        now = time.monotonic()
        for stream in self._streams:
            if stream.open and not stream.waiting:
                stream.request(Kind.INFER, (False,), (self._rows,), now)
            due = stream.due(now)
            if due and self._port.send(due[0], *due[1]):
                stream.note_sent(now)
        self._poller.wait(MAX_WAIT_S)
        while message := self._port.receive():
            self._take(message)

    def _take(self, message: Incoming) -> None:
        slot = message.header.slot
        stream = self._streams[slot]
        if stream.expects(message.header) and not message.into(self._acts[slot]):
            raise RemoteProtocolError(f"ACT: expected {self._acts[slot].nbytes} bytes of act rows", "payload")
        reply = stream.accept(message.header, time.monotonic())
        if reply is Reply.WELCOME:
            policy = PolicySpec.from_wire(stream.terms.get("policy"))
            self._acts[slot] = np.zeros(len(self._rows), act_record(self._env, policy).dtype)
        elif reply is Reply.ANSWER:
            self.answered[slot] += 1


def ask(pipe: Connection, endpoint: str, env: EnvSpec, groups: int, num_envs: int) -> NoReturn:
    """Send requests for ever; report on the pipe once every group has had its first answer."""
    asking = EnvGroups(endpoint, env, groups, num_envs)
    while not all(asking.answered):
        asking.turn()
    pipe.send("under way")
    while True:
        asking.turn()
