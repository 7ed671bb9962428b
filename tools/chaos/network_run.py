"""Runs that networks are broken under: what their progress is, and what they did with their rollouts."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from zerobeast.common.errors import BeastError
from zerobeast.common.runtime.roles import ROLES, SERVERS
from zerobeast.common.transport import Context, WeightsSubscriber
from zerobeast.common.wire.messages import Kind
from zerobeast.tools.chaos.network_service import MODULE
from zerobeast.tools.chaos.proxy import Proxy
from zerobeast.tools.throwaway_run import ThrowawayRun

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
START_LIMIT_S = 120.0
PERIOD_S = 0.01
SETTLED_S = 1.0  #: after which every health page says what was true at its beginning


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
        self._surroundings = ["--hurry", str(hurry), *(["--hosts", str(hosts)] if hosts else [])]
        self._ports = iter(_free_ports(SPAN * 10)[::SPAN])
        self.endpoints = {role: f"tcp://127.0.0.1:{self.free_port()}" for role in SERVERS}  #: where servers bind
        self.resources = ExitStack()
        self.version = 0  #: newest of the weights

    def __enter__(self) -> Self:
        super().__enter__()
        self._context = Context()
        self.resources.callback(self._context.term)
        self._weights = WeightsSubscriber(self._context, self.endpoints["learner"])
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        super().__exit__(*error)
        self._weights.close()
        self.resources.close()

    def free_port(self) -> int:
        """The first of three unused ones."""
        return next(self._ports)

    def begin(self, role: str, *flags: str, pause_s: float = 0.0) -> None:
        """Start one more service of a role, with servers where `reached` says."""
        own = {role: self.endpoints[role]} if role in SERVERS else {}
        places = [
            part for server, place in {**self.reached(role), **own}.items() for part in (f"--{server}.endpoint", place)
        ]
        self.start(role, *places, *self._surroundings, "--role", role, "--pause", str(pause_s), *flags, module=MODULE)

    def reached(self, _role: str) -> Mapping[str, str]:
        """Where a client of this role reaches each server."""
        return self.endpoints

    def follow(self, learner: str) -> None:
        """Listen to the learner at this endpoint from now on."""
        self._weights.close()
        self._weights = WeightsSubscriber(self._context, learner)

    def until(self, probe: Callable[[], Any], limit_s: float = START_LIMIT_S) -> float:
        """Watch until something is true; returns the seconds that took, infinity where it took too long.

        Raises:
          BeastError: a service has ended.
        """
        started = time.monotonic()
        while not probe():
            if time.monotonic() - started > limit_s:
                return float("inf")
            self.watch(PERIOD_S)
        return time.monotonic() - started

    def watch(self, seconds: float) -> None:
        """Let time pass and follow what the learner publishes. Raises BeastError where a service has ended."""
        until = time.monotonic() + seconds
        while True:
            self._listen()
            if (left := until - time.monotonic()) <= 0:
                break
            time.sleep(min(PERIOD_S, left))
        for child in self.children:
            if child.poll() is not None and not child.was_killed:
                raise BeastError(child.explain())

    def rate(self, warmup_s: float, seconds: float) -> float:
        """Updates a second over these seconds, after others."""
        self.watch(warmup_s)
        before, since = self.version, time.monotonic()
        self.watch(seconds)
        return (self.version - before) / (time.monotonic() - since)

    def page(self, role: str) -> dict[str, Any]:
        """The health page of the first service of a role, empty where it does not answer."""
        return next(iter(self.pages(role)), {})

    def memory(self) -> dict[str, float]:
        """MiB in use by each process."""
        pages = [page for role in ROLES for page in self.pages(role)]
        return {f"{page['role']} {page['pid']}": page["memory_bytes"] / (1 << 20) for page in pages}

    def grown(self, memory: Mapping[str, float]) -> dict[str, int]:
        """MiB that each process has grown by since `memory`."""
        return {who: round(mib - memory.get(who, mib)) for who, mib in self.memory().items()}

    def streams(self) -> dict[tuple[int, int], int]:
        """Rollout messages of each env group, by sender and slot, that the learner has learned from."""
        return {(sender, slot): consumed for sender, slot, _, _, consumed, _ in self.page("learner").get("streams", [])}

    def unsettled(self) -> tuple[int, int]:
        """Rollouts that were acknowledged and are in no book, and rollouts that were taken twice.

        Without weights the policy that acts soon becomes too old to learn from; those rollouts are booked as stale.
        """
        before = self.pages("actor")
        self.watch(SETTLED_S)
        booked = sum(self.page("learner")["rollouts_by_fate"].values())
        self.watch(SETTLED_S)
        rows = self.config.actor.envs_per_group
        acked = sum(page["rollouts"] - page["unacked"] * rows for page in before)
        made = sum(page["rollouts"] for page in self.pages("actor"))
        return max(0, acked - booked), max(0, booked - made)

    def _listen(self) -> None:
        while message := self._weights.receive():
            assert message.header.kind is Kind.WEIGHTS, "nothing else is on this plane"
            self.version = message.header.body[0]


class ProxiedRun(WatchedRun):
    """All four services, with a proxy before every plane."""

    def __init__(self, flags: Sequence[str], folder: Path, *, hurry: float = 1.0) -> None:
        super().__init__(flags, folder, hurry=hurry)
        self.proxies = {
            plane: Proxy(f"tcp://127.0.0.1:{self.free_port()}", self.endpoints[server], sockets)
            for plane, (server, _, sockets) in PLANES.items()
        }

    def __enter__(self) -> Self:
        super().__enter__()
        for proxy in self.proxies.values():
            self.resources.enter_context(proxy)
        for role in ROLES:
            self.begin(role)
        return self

    def reached(self, role: str) -> Mapping[str, str]:
        """See the base class."""
        wired = {
            server: str(self.proxies[plane].listen) for plane, (server, client, _) in PLANES.items() if client == role
        }
        return self.endpoints | wired


def _free_ports(count: int) -> range:
    chance = random.SystemRandom()
    while True:
        first = chance.randrange(20_000, 32_000 - count)
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return range(first, first + count)
