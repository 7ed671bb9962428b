"""Runs that networks are broken under: services on tcp, started one by one, and how they get on."""

from __future__ import annotations

import math
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from zerobeast.common.runtime.roles import ROLES, SERVERS
from zerobeast.common.transport import Context
from zerobeast.tools.chaos.network_service import MODULE
from zerobeast.tools.chaos.proxy import Proxy
from zerobeast.tools.chaos.watch import RunWatch
from zerobeast.tools.throwaway_run import START_LIMIT_S, ThrowawayRun

SMALL = (
    *("--env", "CartPole-v1", "--net.torso", "mlp", "--net.hidden_size", "8", "--net.use_lstm", "true"),
    *("--net.lstm_size", "4", "--actor.env_groups", "2", "--actor.envs_per_group", "4", "--learner.unroll_length", "5"),
    *("--learner.batch_size", "4", "--learner.device", "cpu", "--broker.device", "cpu"),
)
#: frames of 7 KB, rollouts of 1.6 MB, weights of 7 MB
LARGE = (
    *("--env", "PongNoFrameskip-v4", "--net.torso", "shallow", "--actor.env_groups", "2"),
    *("--actor.envs_per_group", "16", "--learner.unroll_length", "10", "--learner.batch_size", "16"),
    *("--learner.device", "cpu", "--broker.device", "cpu"),
)
#: plane -> the server behind its proxy, the client that the proxy leads to, and the sockets that belong to the plane
PLANES = {
    "steps": ("envserver", "actor", (0, 1)),
    "inference": ("broker", "actor", (0, 1)),
    "rollouts": ("learner", "actor", (0, 1)),
    "weights": ("learner", "broker", (2,)),
}
SPAN = 3  #: ports of an endpoint
#: updates that rollouts make which were under way: each group's window, the learner's queue, the batch in work
UNDER_WAY = 8


class WatchedRun(ThrowawayRun):
    """Services on tcp, started by `begin`.

    Args:
      flags: settings of the run.
      folder: an empty one with a short path.
      hurry: how much shorter time-outs are than they usually are.
      hosts: file in which services look names up.
    """

    def __init__(self, flags: Sequence[str], folder: Path, *, hurry: float = 1.0, hosts: Path | None = None) -> None:
        super().__init__(flags, folder)
        self.hurry = hurry
        self._surroundings = ["--hurry", str(hurry), *(["--hosts", str(hosts)] if hosts else [])]
        self._ports = _free_ports()
        self.endpoints = {role: self.free_endpoint() for role in SERVERS}  #: where servers bind
        self.resources = ExitStack()

    def __enter__(self) -> Self:
        super().__enter__()
        self.context = Context()
        self.resources.callback(self.context.term)
        self.watch = RunWatch(self, self.context)
        self.resources.callback(self.watch.close)
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        super().__exit__(*error)
        self.resources.close()

    @property
    def learner_endpoint(self) -> str:
        """Where the newest learner binds."""
        return self.endpoints["learner"]

    def free_endpoint(self) -> str:
        """An unused one."""
        return f"tcp://127.0.0.1:{next(self._ports)}"

    def begin(self, *roles: str, pause_s: float = 0.0) -> None:
        """Start one more service of each role, with servers where `reached` says."""
        for role in roles:
            own = {role: self.endpoints[role]} if role in SERVERS else {}
            places = {**self.reached(role), **own}.items()
            flags = [part for server, place in places for part in (f"--{server}.endpoint", place)]
            self.start(role, *flags, *self._surroundings, "--role", role, "--pause", str(pause_s), module=MODULE)

    def begin_all(self) -> None:
        """Start one service of each role, and wait until they train."""
        self.begin(*ROLES)
        self.until(lambda: self.watch.version > UNDER_WAY)

    def reached(self, _role: str) -> Mapping[str, str]:
        """Where a client of this role reaches each server."""
        return self.endpoints

    def until(self, probe: Callable[[], Any], limit_s: float = START_LIMIT_S) -> float:
        """Watch until something is true; returns the seconds that took, infinity if it took too long.

        Raises:
          BeastError: a service has ended.
        """
        started = time.monotonic()
        return time.monotonic() - started if self.watch.until(started + limit_s, probe) else math.inf

    def wait(self, seconds: float) -> None:
        """Watch for so long. Raises BeastError if a service has ended."""
        self.watch.until(time.monotonic() + seconds)

    def rate(self, warmup_s: float, seconds: float) -> float:
        """Updates a second over these seconds, after `warmup_s` others."""
        self.wait(warmup_s)
        before, since = self.watch.version, time.monotonic()
        self.wait(seconds)
        return (self.watch.version - before) / (time.monotonic() - since)

    def page(self, role: str) -> dict[str, Any]:
        """The health page of the first service of a role, empty while it does not answer."""
        return next(iter(self.pages(role)), {})

    def memory(self) -> dict[str, float]:
        """MiB in use by each service that runs."""
        self.watch.look()
        return {name: points[-1][2] for name, points in self.watch.memory.items() if name not in self.down}

    def grown(self, memory: Mapping[str, float]) -> dict[str, int]:
        """MiB that each service has grown by since `memory`."""
        return {name: round(mib - memory.get(name, mib)) for name, mib in self.memory().items()}

    def streams(self) -> dict[tuple[int, int], int]:
        """Rollout messages of each env group, by sender and slot, that the learner has learned from."""
        return {(sender, slot): consumed for sender, slot, _, _, consumed, _ in self.page("learner").get("streams", [])}


class ProxiedRun(WatchedRun):
    """All four services, with a proxy before every plane."""

    def __init__(self, flags: Sequence[str], folder: Path, *, hurry: float = 1.0) -> None:
        super().__init__(flags, folder, hurry=hurry)
        self.proxies = {
            plane: Proxy(self.free_endpoint(), self.endpoints[server], sockets)
            for plane, (server, _, sockets) in PLANES.items()
        }

    def __enter__(self) -> Self:
        super().__enter__()
        for proxy in self.proxies.values():
            self.resources.enter_context(proxy)
        self.begin_all()
        return self

    def reached(self, role: str) -> Mapping[str, str]:
        """See the base class."""
        wired = {
            server: str(self.proxies[plane].listen) for plane, (server, client, _) in PLANES.items() if client == role
        }
        return self.endpoints | wired


def _free_ports() -> Iterator[int]:
    """Ports that are unused with those that follow them in an endpoint."""
    for first in range(random.SystemRandom().randrange(20_000, 31_000), 32_000, SPAN):
        with suppress(OSError):
            for port in range(first, first + SPAN):
                socket.create_server(("127.0.0.1", port)).close()
            yield first
