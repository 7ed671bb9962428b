"""Watches a run from outside while it lasts: pages, weights, memory."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import psutil

from zerobeast.common.errors import BeastError
from zerobeast.common.transport import Context, WeightsSubscriber
from zerobeast.common.wire.messages import Kind
from zerobeast_tools.chaos import verdict
from zerobeast_tools.chaos.balance import Balance, RolloutAudit
from zerobeast_tools.chaos.progress import ProgressLog
from zerobeast_tools.throwaway_run import ThrowawayRun

TURN_S, PERIOD_S = 0.05, 0.25  #: between two looks at the weights, and at the pages
PAGE_LIMIT_S = 1.0
MIB = 1 << 20
QUIET_S = 1.5  #: without any change in the accounts, before they are settled: three pages of every service
QUIET_LIMIT_S = 60.0


class RunWatch:
    """Watches a fleet while it lasts.

    Args:
      fleet: whose services are to be started.
    """

    def __init__(self, fleet: ThrowawayRun) -> None:
        self.fleet = fleet
        self.audit = RolloutAudit()
        self.progress = ProgressLog()
        self.memory: dict[str, list[tuple[float, float, float]]] = {}  #: name -> (moment, uptime, MiB)
        self.versions: dict[int, int] = {}  #: newest, by epoch of the learner, in order of appearance
        self.ready: dict[str, float] = {}  #: name -> since when its newest process has been ready
        self._last_pages: dict[tuple[int, str], dict[str, Any]] = {}  #: by pid and role, of all services so far
        self._look_at = 0.0
        self._context = Context()
        self._weights = WeightsSubscriber(self._context, fleet.learner_endpoint)

    def close(self) -> None:
        """Close the subscription."""
        self._weights.close()
        self._context.term()

    def follow_learner(self) -> None:
        """Subscribe again, because the learner is at another endpoint now."""
        self._weights.close()
        self._weights = WeightsSubscriber(self._context, self.fleet.learner_endpoint)

    @property
    def version(self) -> int:
        """Newest version of the weights from the newest learner."""
        return next(reversed(self.versions.values()), 0)

    @property
    def refused(self) -> Counter[str]:
        """Refused messages by reason, over all services that ever ran."""
        found = (Counter(page.get("refused_by_reason", {})) for page in self._last_pages.values())
        return sum(found, Counter[str]())

    def total(self, counter: str) -> int:
        """A counter of the health pages, over all services that ever ran."""
        return sum(page.get(counter, 0) for page in self._last_pages.values())

    def until(self, moment: float, reached: Callable[[], Any] = lambda: False) -> Any:
        """Look again and again until a moment, or until `reached` returns something true, which is returned.

        Raises:
          BeastError: a service ended by itself, or weights came in the wrong order.
        """
        while not (found := reached()) and time.monotonic() < moment:
            if time.monotonic() >= self._look_at:
                self.look()
            time.sleep(min(TURN_S, max(0.0, moment - time.monotonic())))
            self._listen()
        return found

    def look(self) -> None:
        """Read everything once."""
        self._look_at = time.monotonic() + PERIOD_S
        self._listen()
        for name, pages, at in self._pages():
            if is_ready(pages):
                self.ready.setdefault(name, at)
            size = sum(page["memory_bytes"] for page in pages)
            self.memory.setdefault(name, []).append((at, pages[0]["uptime_s"], size / MIB))
            for page in pages:
                self.audit.note(name, page)
                self._last_pages[page["pid"], page["role"]] = page
                # a replay that fills takes rollouts as fast as they are made, which is not the rate of learning
                if page["role"] == "learner" and page.get("updates") and not page["rank"]:
                    self.progress.add(at, page["uptime_s"], page["epoch"], page["rollouts_by_fate"]["used"])

    def _pages(self) -> Iterator[tuple[str, list[dict[str, Any]], float]]:
        """Each process whose services all answer now, with their pages and when they were read.

        Raises:
          BeastError: one has ended by itself.
        """
        for child in self.fleet.children:
            name = child.spec.name
            if name in self.fleet.down or name in self.fleet.frozen:
                continue
            if child.poll() is not None:
                raise BeastError(child.explain())
            if all(pages := [child.page(role, PAGE_LIMIT_S) for role in child.spec.statuses]):
                yield name, pages, time.monotonic()

    def forget(self, name: str) -> None:
        """Note that a process has ended."""
        self.ready.pop(name, None)
        self.audit.actor_ended(name)

    def draw_balance(self) -> Balance:
        """Stop the environments, wait until nothing is under way any more, and draw up the balance.

        Raises:
          BeastError: something goes on moving, does not answer, or cannot be stopped.
        """
        self.look()  # finds a service that has ended
        servers = [child for child in self.fleet.children if child.spec.role == "envserver"]
        with ExitStack() as stopped:
            for server in servers:
                self.fleet.freeze(server.spec.name)
                stopped.callback(self.fleet.thaw, server.spec.name)
            for process in self._environments():
                process.suspend()
                stopped.callback(_resume, process)
            return self._quiet()

    def _environments(self) -> Iterator[psutil.Process]:
        """The processes in which workers step their environments; a worker that is stopped could not send the rest."""
        for worker in (child for child in self.fleet.children if child.spec.role == "worker"):
            if not (found := psutil.Process(worker.pid).children()):
                raise BeastError(f"{worker.spec.name} steps its environments itself: they cannot be stopped alone")
            yield from found

    def wrong_accounts(self, balance: Balance) -> list[str]:
        """See `verdict.accounts`."""
        config = self.fleet.config
        window = config.learner.window + config.actor.collect_ahead
        return list(verdict.accounts(balance, window, self.audit.steps, config.learner.unroll_length))

    def wrong_messages(self, starts: int) -> list[str]:
        """What services that only restart must not send each other; `starts`: the learner's after the first."""
        placement, drops = self.fleet.plan.placement, self.total("policy_version_drops")
        groups = placement.all_actors * placement.env_groups
        return [
            *verdict.versions(len(self.versions), starts, drops, groups),
            *verdict.strangeness(self.refused, self.total("env_errors")),
        ]

    def _quiet(self) -> Balance:
        limit, balance = time.monotonic() + QUIET_LIMIT_S, self.audit.balance()
        while time.monotonic() < limit:
            if not self.until(time.monotonic() + QUIET_S, lambda: self.audit.balance() != balance):  # noqa: B023
                return balance
            balance = self.audit.balance()
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


def is_ready(pages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all services of a process are ready; a worker, which makes its own environments, once it has them."""
    hosts = [page for page in pages if page["role"] == "envserver"] if len(pages) > 1 else []
    made = all(page.get("sessions") and not page["sessions_making"] for page in hosts)
    return made and all(page["state"] == "ready" for page in pages)


def _resume(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()
