"""What is seen of a run from outside, while time passes: pages, weights, memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from zerobeast.common.errors import BeastError
from zerobeast.common.health.pages import announced_page
from zerobeast.common.transport import Context, WeightsSubscriber
from zerobeast.common.wire.messages import Kind
from zerobeast.launcher.child import Child
from zerobeast.launcher.fleet import Fleet
from zerobeast.tools.chaos.balance import Balance, RolloutAudit
from zerobeast.tools.chaos.progress import ProgressLog

PERIOD_S = 0.25
PAGE_LIMIT_S = 1.0
MIB = 1 << 20
QUIET_S = 1.5  #: without any change in the accounts, before they are settled: three pages of every service
QUIET_LIMIT_S = 60.0


class RunWatch:
    """Looks at a fleet while it lasts.

    Args:
      fleet: whose services have been started.
      context: to subscribe to the weights with.
    """

    def __init__(self, fleet: Fleet, context: Context) -> None:
        self.fleet = fleet
        self.audit = RolloutAudit()
        self.progress = ProgressLog()
        self.memory: dict[str, list[tuple[float, float, float]]] = {}  #: name -> (moment, uptime, MiB)
        self.versions: dict[int, int] = {}  #: newest, by epoch of the learner, in order of appearance
        self.version_drops = 0  #: answers chosen by older weights than the one before, as actors count them
        self.refused: dict[str, int] = {}  #: messages, by reason; of all services that ever were
        self.env_errors = 0
        self.ready: dict[str, float] = {}  #: since when a process is ready, by name; of the newest one
        self._counted: dict[tuple[str, int], dict[str, int]] = {}  #: newest counters by name and process
        self._weights = WeightsSubscriber(context, fleet.learner_endpoint)

    def close(self) -> None:
        """Close the subscription."""
        self._weights.close()

    def until(self, moment: float, reached: Callable[[], Any] = lambda: False) -> Any:
        """Look again and again until a moment, or until something is true, which is returned.

        Raises:
          BeastError: a service ended by itself, or weights came in the wrong order.
        """
        while not (found := reached()) and time.monotonic() < moment:
            self.look()
            time.sleep(min(PERIOD_S, max(0.0, moment - time.monotonic())))
        return found

    def look(self) -> None:
        """Read everything once."""
        self._listen()
        for child, page, at in self._pages():
            name, role = child.spec.name, child.spec.role
            if page["state"] == "ready":
                self.ready.setdefault(name, at)
            self.audit.note(name, page)
            self.memory.setdefault(name, []).append((at, page["uptime_s"], page["memory_bytes"] / MIB))
            self._count(name, page)
            if role == "learner" and page.get("epoch"):
                self.progress.add(at, page["uptime_s"], page["epoch"], page["rollouts_by_fate"]["used"])

    def _pages(self) -> Iterator[tuple[Child, dict[str, Any], float]]:
        """Each service that answers now, its page, and when it was read.

        Raises:
          BeastError: one has ended by itself.
        """
        fleet = self.fleet
        for child in fleet.children:
            if child.spec.name in fleet.down or child.spec.name in fleet.frozen:
                continue
            if child.poll() is not None:
                raise BeastError(child.explain())
            page = announced_page(child.spec.status, PAGE_LIMIT_S)
            if page and page.get("pid") == child.pid:
                yield child, page, time.monotonic()

    def forget(self, name: str) -> None:
        """A service has ended."""
        self.ready.pop(name, None)
        self.audit.actor_ended(name)

    def settle(self) -> Balance:
        """Stop the environments, wait until nothing is under way any more, and draw up the balance.

        Raises:
          BeastError: something goes on moving, or does not answer.
        """
        servers = [child.spec.name for child in self.fleet.children if child.spec.role == "envserver"]
        for name in servers:
            self.fleet.freeze(name)
        try:
            return self._quiet()
        finally:
            for name in servers:
                self.fleet.thaw(name)

    def _quiet(self) -> Balance:
        limit, changed_at, last = time.monotonic() + QUIET_LIMIT_S, time.monotonic(), None
        while time.monotonic() < limit:
            self.look()
            if (balance := self.audit.balance()) != last:
                last, changed_at = balance, time.monotonic()
            elif time.monotonic() - changed_at > QUIET_S:
                return balance
            time.sleep(PERIOD_S)
        raise BeastError(f"the accounts still change {QUIET_LIMIT_S:.0f} s after the last step of an environment")

    def _listen(self) -> None:
        while message := self._weights.receive():
            header = message.header
            if header.kind is not Kind.WEIGHTS:
                continue
            version, newest = header.body[0], next(reversed(self.versions), header.epoch)
            if header.epoch != newest and header.epoch in self.versions:
                raise BeastError("weights of a learner that has ended came back")
            if version < self.versions.get(header.epoch, 0):
                raise BeastError(f"weights of version {version} came after version {self.versions[header.epoch]}")
            self.versions[header.epoch] = version

    def _count(self, name: str, page: dict[str, Any]) -> None:
        """Sum up counters over all processes that ever had this name: each starts from 0."""
        now = {f"refused {reason}": count for reason, count in page.get("refused_by_reason", {}).items()}
        now |= {key: page.get(key, 0) for key in ("policy_version_drops", "env_errors")}
        before = self._counted.get((name, page["pid"]), {})
        self._counted[name, page["pid"]] = now
        for key, count in now.items():
            grown = count - before.get(key, 0)
            if key == "policy_version_drops":
                self.version_drops += grown
            elif key == "env_errors":
                self.env_errors += grown
            elif grown:
                reason = key.removeprefix("refused ")
                self.refused[reason] = self.refused.get(reason, 0) + grown
