"""A small training run under attack: what is sent at it, what it has to count, and what can be seen of it."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

from zerobeast.common.errors import BeastError
from zerobeast.common.health.pages import announced_page
from zerobeast.common.runtime.endpoints import Endpoint
from zerobeast.common.runtime.roles import ROLES
from zerobeast.common.wire.messages import Plane
from zerobeast.launcher.child import Child
from zerobeast.tools.chaos.fuzz_attacks import ATTACKS, AttackTarget
from zerobeast.tools.chaos.fuzz_hello import ENV, UNROLL_LENGTH
from zerobeast.tools.chaos.fuzz_impostors import GENUINE, Forger, Visitor, overheard
from zerobeast.tools.chaos.fuzz_messages import Case, Cases
from zerobeast.tools.chaos.fuzz_peer import REQUESTS, RawPeer, message
from zerobeast.tools.throwaway_run import ThrowawayRun

LOOK_PERIOD_S = 0.5
PAGE_LIMIT_S = 10.0
START_LIMIT_S = 180.0
COUNT_LIMIT_S = 120.0
QUIET_S = 1.5  #: without another refusal: longer than between two pages
AT_ONCE = 100
VISIT = 100  #: messages of one visitor, more than a stream may have under way
VISITORS = 20  #: at a time
#: by plane: who serves it, and the name of its socket
SERVERS = {Plane.STEPS: ("envserver", "e0"), Plane.INFERENCE: ("broker", "b0"), Plane.ROLLOUTS: ("learner", "l")}
FLAGS = {
    "env": ENV,
    "net.torso": "mlp",
    "net.hidden_size": 16,
    "actor.env_groups": 2,
    "actor.envs_per_group": 4,
    "broker.max_batch_rows": 32,
    "broker.device": "cpu",
    "broker.precision": "float32",
    "learner.device": "cpu",
    "learner.precision": "float32",
    "learner.unroll_length": UNROLL_LENGTH,
    "learner.batch_size": 8,
}


class FuzzedRun(ThrowawayRun):
    """The run and everything that is sent at it.

    Args:
      folder: an empty one with a short path.
      seed: of everything hostile.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__([text for name, value in FLAGS.items() for text in (f"--{name}", str(value))], folder)
        self.sent: dict[str, Counter[str]] = defaultdict(Counter)  #: hostile messages by plane and by what they were
        self.attacks: Counter[str] = Counter()  #: by name
        self.wrong: list[str] = []  #: what was not counted as it should have been
        self.canary = folder / "unpickled"
        # By plane, since planes are attacked at once and each has to be repeatable.
        self._rngs = {plane: random.Random(f"{seed} {plane.name}") for plane in Plane}  # noqa: S311
        self._by_role: dict[str, Child] = {}

    def begin(self) -> None:
        """Start the services and wait until they train."""
        for role in ROLES:
            self._by_role[role] = self.start(role)
        until(lambda: self.agent_steps() > 0, START_LIMIT_S, "training does not start")

    def updates(self) -> int:
        """Updates of the learner so far."""
        return int(page_of(self._by_role["learner"]).get("updates", 0))

    def still_trains(self) -> bool:
        """Whether another update comes."""
        newest, deadline = self.updates(), time.monotonic() + COUNT_LIMIT_S
        while self.updates() <= newest and time.monotonic() < deadline:
            time.sleep(LOOK_PERIOD_S)
        return self.updates() > newest

    @property
    def actor(self) -> Child:
        """The honest one."""
        return self._by_role["actor"]

    def round(self, messages: int, scale: int) -> None:
        """Send this many messages over all planes at once, then every attack once."""
        share = messages // len(SERVERS)
        with ThreadPoolExecutor(len(SERVERS)) as pool:
            list(pool.map(lambda plane: self._messages(plane, share), SERVERS))
        for attack in ATTACKS:
            for plane in SERVERS:
                attack(self._target(plane), scale)
                self.attacks[attack.__name__] += 1

    def second_broker(self) -> Child:
        """A broker whose learner is another one, which `forge` plays."""
        endpoint = Endpoint(path=f"{self.folder}/f")
        place = Endpoint(path=f"{self.folder}/c")
        broker = self.start("broker", "--broker.endpoint", str(place), "--learner.endpoint", str(endpoint))
        until(lambda: page_of(broker).get("state") == "ready", START_LIMIT_S, "the second broker does not start")
        return broker

    def forge(self, broker: Child, messages: int) -> None:
        """Publish forged weights to the second broker, then a version that it has to take."""
        real = overheard(self._endpoint(Plane.ROLLOUTS))
        with (
            Forger(Endpoint(path=f"{self.folder}/f"), real, self._rngs[Plane.WEIGHTS]) as forger,
            Visitor(Endpoint(path=f"{self.folder}/c"), Plane.INFERENCE, self._rngs[Plane.INFERENCE], asks=False),
            forger.subscriber() as ear,
        ):
            cases = [forger.case() for _ in range(messages)]
            self._send(ear, "weights", "forged", cases)
            self._reckon(broker, "forged weights", Counter(), cases)
            ear.send(message(forger.genuine().frames))
            until(
                lambda: page_of(broker).get("policy_version") == GENUINE,
                COUNT_LIMIT_S,
                "a broker does not take the weights that follow forged ones",
            )

    def quiet(self) -> None:
        """Wait until nothing more is refused anywhere."""
        quiet(*map(self._server, SERVERS))

    def _messages(self, plane: Plane, count: int) -> None:
        cases = Cases(self._rngs[plane], plane, str(self.canary))
        before = quiet(self._server(plane))
        before = self._barrage(plane, "strangers", [cases.stranger() for _ in range(count * 6 // 10)], before)
        before = self._barrage(plane, "mutants", [cases.mutant() for _ in range(count * 2 // 10)], before)
        self._visitors(plane, count * 2 // 10, before)

    def _visitors(self, plane: Plane, count: int, before: Counter[str]) -> None:
        child = self._server(plane)
        said: list[Case] = []
        while len(said) < count:
            with ExitStack() as stack:  # they stay until all is counted: what comes of those who went is not theirs
                for _ in range(min(VISITORS, -(-(count - len(said)) // VISIT))):
                    visitor = stack.enter_context(Visitor(self._endpoint(plane), plane, self._rngs[plane]))
                    cases = [visitor.case() for _ in range(min(VISIT, count - len(said)))]
                    visitor.say(*cases)
                    said += cases
                self._reckon(child, "visitors", before, said)
        self.sent[plane.name.lower()]["visitors"] += len(said)

    def _barrage(self, plane: Plane, what: str, cases: Sequence[Case], before: Counter[str]) -> Counter[str]:
        with RawPeer(self._endpoint(plane), REQUESTS, b"PUSH") as peer:
            self._send(peer, plane.name.lower(), what, cases)
            return self._reckon(self._server(plane), what, before, cases)

    def _send(self, peer: RawPeer, plane: str, what: str, cases: Sequence[Case]) -> None:
        for start in range(0, len(cases), AT_ONCE):
            peer.send(*(message(case.frames) for case in cases[start : start + AT_ONCE]))
        self.sent[plane][what] += len(cases)

    def _reckon(self, child: Child, what: str, before: Counter[str], cases: Sequence[Case]) -> Counter[str]:
        """Wait until everything is counted that has to be, and compare each reason; returns all that is counted."""
        refused = [case.refused for case in cases if case.refused]
        certain: Counter[str] = Counter(reasons[0] for reasons in refused if len(reasons) == 1)
        possible: Counter[str] = Counter(each for reasons in refused if len(reasons) > 1 for each in reasons)
        unknown = sum(case.refused is None for case in cases)
        least = len(refused)

        def counted() -> int:
            return (refusals(child) - before).total()

        until(lambda: counted() >= least, COUNT_LIMIT_S, f"{child.spec.name} has not refused {least} {what}")
        now = quiet(child)
        found = now - before
        bounds = {reason: (certain[reason], certain[reason] + possible[reason] + unknown) for reason in found | certain}
        for reason, (low, high) in [("anything", (least, least + unknown)), *bounds.items()]:
            many = found.total() if reason == "anything" else found[reason]
            if not low <= many <= high:
                self.wrong.append(f"{child.spec.name}, {what}: {many} refused as {reason}, expected {low} to {high}")
        return now

    def _server(self, plane: Plane) -> Child:
        return self._by_role[SERVERS[plane][0]]

    def _endpoint(self, plane: Plane) -> Endpoint:
        return Endpoint(path=f"{self.folder}/{SERVERS[plane][1]}")

    def _target(self, plane: Plane) -> AttackTarget:
        host, _, port = json.loads(self._server(plane).spec.status.read_text())["health"].rpartition(":")
        return AttackTarget(SERVERS[plane][0], plane, self._endpoint(plane), (host, int(port)), self._rngs[plane])


def until(probe: Callable[[], bool], limit_s: float, complaint: str) -> None:
    """Wait for something to be true. Raises BeastError where it does not come."""
    deadline = time.monotonic() + limit_s
    while not probe():
        if time.monotonic() > deadline:
            raise BeastError(f"{complaint} within {limit_s:.0f} s")
        time.sleep(0.1)


def quiet(*children: Child) -> Counter[str]:
    """Wait until these services have refused nothing for a while; what they have refused so far."""
    found, since = refusals(*children), time.monotonic()
    while time.monotonic() - since < QUIET_S:
        time.sleep(0.2)
        if (now := refusals(*children)) != found:
            found, since = now, time.monotonic()
    return found


class Reading(NamedTuple):
    """One process at one moment."""

    rss_bytes: int
    files: int  #: open
    log_bytes: int


def read(child: Child) -> Reading:
    """Look at a process that runs."""
    pages = int(Path(f"/proc/{child.pid}/statm").read_text().split()[1])
    files = len(list(Path(f"/proc/{child.pid}/fd").iterdir()))
    return Reading(pages * os.sysconf("SC_PAGE_SIZE"), files, child.spec.log.stat().st_size)


def page_of(child: Child) -> dict[str, Any]:
    """The newest health page; empty where there is none."""
    return announced_page(child.spec.status, PAGE_LIMIT_S) or {}


def refusals(*children: Child) -> Counter[str]:
    """Messages refused so far, by reason."""
    return sum((Counter(page_of(child).get("refused_by_reason", {})) for child in children), Counter())


class UsageWatch:
    """Looks at the pages of services until it is left.

    Args:
      children: whose.
    """

    def __init__(self, children: Sequence[Child]) -> None:
        self.loop_age_s = {child.spec.name: 0.0 for child in children}  #: the worst that a page has shown
        self.silence_s = {child.spec.name: 0.0 for child in children}  #: the longest without a page
        self._children = children
        self._seen_at: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._seen_at = dict.fromkeys(self.silence_s, time.monotonic())
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(LOOK_PERIOD_S):
            for child in self._children:
                self._look(child)

    def _look(self, child: Child) -> None:
        name, page, now = child.spec.name, page_of(child), time.monotonic()
        self.silence_s[name] = max(self.silence_s[name], now - self._seen_at[name])
        if page:
            self._seen_at[name] = now
            self.loop_age_s[name] = max(self.loop_age_s[name], float(page.get("loop_age_s", 0.0)))
