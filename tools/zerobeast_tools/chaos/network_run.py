"""Runs whose network is broken on purpose: services on tcp, started one by one, and their progress."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from zerobeast.common.process.roles import ROLES, SERVERS
from zerobeast_tools.chaos.proxy import Proxy
from zerobeast_tools.chaos.watch import RunWatch
from zerobeast_tools.throwaway_run import ThrowawayRun, tcp_endpoints, unused_host
from zerobeast_tools.watched_run import START_LIMIT_S

SMALL_FLAGS = (
    *("--env", "CartPole-v1", "--net.torso", "mlp", "--net.hidden_size", "8", "--net.core", "lstm"),
    *("--net.core_width", "4", "--actor.env_groups", "2", "--actor.envs_per_group", "4"),
    *("--learner.unroll_length", "5"),
    *("--learner.batch_size", "4", "--learner.device", "cpu", "--broker.device", "cpu"),
)
#: frames of 7 KB, rollouts of 1.6 MB, weights of 7 MB
LARGE_FLAGS = (
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
PROXY_PORTS = (5570, 5575, 5580, 5585)  #: one for each plane, since packets are dropped by port
MODULE = "zerobeast_tools.chaos.network_service"
MEMORY_MIB = 64  #: that a process may grow by under one fault
#: updates from rollouts that were under way: each group's window, the learner's queue, the batch in progress
MAX_UNDER_WAY = 8


class WatchedRun(ThrowawayRun):
    """Services on tcp, started by `begin`.

    Args:
      flags: settings of the run.
      folder: an empty one with a short path.
      own: flags for every service.
    """

    def __init__(self, flags: Sequence[str], folder: Path, own: Sequence[str] = ()) -> None:
        super().__init__(flags, folder, modules={role: f"{MODULE} {role}" for role in ROLES}, own=own)
        self.endpoints = tcp_endpoints()  #: where servers bind
        self.resources = ExitStack()

    def __enter__(self) -> Self:
        super().__enter__()
        self.watch = self.resources.enter_context(closing(RunWatch(self)))
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        super().__exit__(*error)
        self.resources.close()

    @property
    def learner_endpoint(self) -> str:
        """Where the newest learner binds."""
        return self.endpoints["learner"]

    def begin(self, *roles: str, pause_s: float = 0.0) -> None:
        """Start one more service of each role, which reaches servers as `reachable_endpoints` returns."""
        for role in roles:
            own = {role: self.endpoints[role]} if role in SERVERS else {}
            places = {**self.reachable_endpoints(role), **own}.items()
            flags = [part for server, place in places for part in (f"--{server}.endpoint", place)]
            self.start(role, *flags, "--pause", str(pause_s))

    def begin_all(self) -> None:
        """Start one service of each role, and wait until they train."""
        self.begin(*ROLES)
        self.until(lambda: self.watch.version > MAX_UNDER_WAY)

    def reachable_endpoints(self, _role: str) -> Mapping[str, str]:
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
        """Watch for this long. Raises BeastError if a service has ended."""
        self.watch.until(time.monotonic() + seconds)

    def rate(self, warmup_s: float, seconds: float) -> float:
        """Updates a second over `seconds`, after a warm-up of `warmup_s`."""
        self.wait(warmup_s)
        before, since = self.watch.version, time.monotonic()
        self.wait(seconds)
        return (self.watch.version - before) / (time.monotonic() - since)

    def page(self, role: str) -> dict[str, Any]:
        """The health page of the first service of a role, empty while it does not answer."""
        return next(iter(self.pages(role)), {})

    def read_counter(self, role: str, key: str) -> int:
        """A counter on the health page of the first service of a role, as soon as it answers with one.

        Raises:
          BeastError: a service has ended.
        """
        moment = time.monotonic() + START_LIMIT_S
        return int(self.watch.until(moment, lambda: page if key in (page := self.page(role)) else None)[key])

    def memory(self) -> dict[str, float]:
        """MiB in use by each service that runs."""
        self.watch.look()
        return {name: points[-1][2] for name, points in self.watch.memory.items() if name not in self.down}

    def growth(self, memory: Mapping[str, float]) -> dict[str, bool]:
        """Whether a service has grown too much beyond `memory`, as a sentence."""
        grown = {name: round(mib - memory.get(name, mib)) for name, mib in self.memory().items()}
        return {f"memory grew: {grown}": max(grown.values()) > MEMORY_MIB}

    def streams(self) -> dict[tuple[int, int], int]:
        """Rollout messages of each env group, by sender and slot, that the learner has learned from."""
        return {(sender, slot): consumed for sender, slot, _, _, consumed, _ in self.page("learner").get("streams", [])}


class ProxiedRun(WatchedRun):
    """All four services, with a proxy in front of every plane."""

    def __init__(self, flags: Sequence[str], folder: Path) -> None:
        super().__init__(flags, folder)
        self.proxies = {
            plane: Proxy(f"tcp://{unused_host()}:{port}", self.endpoints[server], sockets)
            for port, (plane, (server, _, sockets)) in zip(PROXY_PORTS, PLANES.items(), strict=True)
        }

    def __enter__(self) -> Self:
        super().__enter__()
        for proxy in self.proxies.values():
            self.resources.enter_context(proxy)
        self.begin_all()
        return self

    def reachable_endpoints(self, role: str) -> Mapping[str, str]:
        """See the base class."""
        wired = {
            server: str(self.proxies[plane].listen) for plane, (server, client, _) in PLANES.items() if client == role
        }
        return self.endpoints | wired
