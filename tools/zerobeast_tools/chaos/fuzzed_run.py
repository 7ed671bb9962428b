"""A small training run under attack: what is sent to it, what it has to count, and what it uses meanwhile."""

import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from zerobeast.common.endpoints import Endpoint
from zerobeast.common.errors import BeastError
from zerobeast.common.wire.messages import Plane
from zerobeast.launcher.child import Child
from zerobeast.launcher.pages import Gatherer, Snapshot
from zerobeast.plan.processes import socket_endpoint
from zerobeast.testing.raw_peer import REQUESTS, RawPeer
from zerobeast_tools.chaos.fuzz_attacks import ATTACKS, LARGEST, AttackTarget
from zerobeast_tools.chaos.fuzz_forger import GENUINE_VERSION, Forger, capture_version
from zerobeast_tools.chaos.fuzz_hello import ENV, UNROLL_LENGTH
from zerobeast_tools.chaos.fuzz_messages import Case, Cases
from zerobeast_tools.chaos.fuzz_visitor import Visitor
from zerobeast_tools.throwaway_run import ThrowawayRun

SETTLE_LIMIT_S = 90.0  #: for the sessions and connections of departed clients to end
HANDSHAKE_S = 6.0  #: libzmq ends a connection that sends nothing for 5 s
QUIET_S = 1.5  #: without another refusal; longer than the time between two pages
ROUND = 100_000  #: messages between two rounds of attacks
LONG_ATTACK = 100_000  #: number of messages from which attacks are larger
VISIT = 100  #: messages of one visitor, more than a stream may have under way
VISITORS = 20  #: at a time
#: by plane: who serves it
SERVERS = {Plane.STEPS: "envserver", Plane.INFERENCE: "broker", Plane.ROLLOUTS: "learner"}
#: the honest actor's sessions, as each page calls them
SESSIONS = {"envserver": ("sessions", 2), "broker": ("clients", 2), "learner": ("peers", 1)}
FLAGS = (
    *("--env", ENV, "--net.torso", "mlp", "--net.hidden_size", "16", "--actor.env_groups", "2"),
    *("--actor.envs_per_group", "4", "--broker.max_batch_rows", "32", "--broker.device", "cpu"),
    *("--broker.precision", "float32", "--learner.device", "cpu", "--learner.precision", "float32"),
    *("--learner.unroll_length", str(UNROLL_LENGTH), "--learner.batch_size", "8"),
)


class ProcessUsage(NamedTuple):
    """Resources of one process at one moment."""

    rss_bytes: int
    files: int  #: open
    log_bytes: int

    @classmethod
    def of(cls, child: Child) -> Self:
        """Measure a process. Raises BeastError if it does not answer."""
        if not (page := child.page()):
            raise BeastError(f"{child.spec.name} shows no health page")
        return cls(page["memory_bytes"], page["open_files"], child.spec.log.stat().st_size)


class AnswerWatch(Gatherer):
    """Watches the pages of services until its context is left."""

    def __init__(self, children: Sequence[Child]) -> None:
        super().__init__(lambda: children, self._look)
        self.loop_age_s = {child.spec.name: 0.0 for child in children}  #: the worst that a page has shown
        self.silence_s = dict(self.loop_age_s)  #: the longest without a page

    def _look(self, snapshot: Snapshot) -> None:
        for view in snapshot.services:
            self.silence_s[view.name] = max(self.silence_s[view.name], view.silent_s)
            self.loop_age_s[view.name] = max(self.loop_age_s[view.name], view.page.get("loop_age_s", 0.0))


class FuzzedRun(ThrowawayRun):
    """The run and everything that is sent to it.

    Args:
      folder: an empty one with a short path.
      seed: of everything hostile.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(FLAGS, folder)
        self.sent: dict[str, Counter[str]] = defaultdict(Counter)  #: hostile messages by service and sort
        self.attacks: Counter[str] = Counter()  #: by name
        self.wrong: list[str] = []  #: what was not counted as it should have been
        self.before: dict[str, ProcessUsage] = {}  #: of each service, after the first round, which fills caches
        self.after: dict[str, ProcessUsage] = {}  #: and at the end
        self.canary = folder / "unpickled"
        # By plane, since planes are attacked at once and each has to be repeatable.
        self._rngs = {plane: random.Random(f"{seed} {plane.name}") for plane in Plane}  # noqa: S311

    def updates(self) -> int:
        """Updates of the learner so far."""
        return int(self.child("learner 0").page().get("updates", 0))

    def attack(self, messages: int) -> None:
        """Send this many messages, in rounds.

        Raises:
          BeastError: a service does not count or release what it has to.
          OSError: a service has ended.
        """
        first, forged, scale = messages // 10, messages // 50, LARGEST if messages >= LONG_ATTACK else 1
        self._round(first, scale)
        always, asking = self._broker("c", "f"), self._broker("d", "g", "--sync.rule", "every 1")
        self.before = self._usage_at_rest()
        rounds = -(-messages // ROUND)
        for _ in range(rounds):
            self._round((messages - first - forged) // rounds, scale)
        self._forge(always, "c", "f", forged // 2)
        self._forge_news(asking, "d", "g", forged // 2)
        self.after = self._usage_at_rest()

    def _round(self, messages: int, scale: int) -> None:
        """Send this many messages over all planes at once, then every attack once."""
        share = messages // len(SERVERS)
        with ThreadPoolExecutor(len(SERVERS)) as pool:
            list(pool.map(lambda plane: self._messages(plane, share), SERVERS))
        for attack in ATTACKS:
            for plane in SERVERS:
                attack(self._target(plane), scale)
                self.attacks[attack.__name__] += 1

    def _usage_at_rest(self) -> dict[str, ProcessUsage]:
        """The usage of every process, once everything that hostile peers left behind is gone."""
        wait_until_quiet(*map(self._server, SERVERS))
        for role, (key, many) in SESSIONS.items():
            server = self.child(f"{role} 0")
            complaint = f"{server.spec.name} does not come back to {many} {key}"
            self.wait_for(lambda: server.page().get(key) == many, complaint, SETTLE_LIMIT_S)  # noqa: B023 - called here
        time.sleep(HANDSHAKE_S)
        return {child.spec.name: ProcessUsage.of(child) for child in self.children}

    def _messages(self, plane: Plane, count: int) -> None:
        cases, child = Cases(self._rngs[plane], plane, str(self.canary)), self._server(plane)
        before = wait_until_quiet(child)
        for what, draw, share in (("strangers", cases.stranger, 6), ("mutants", cases.mutant, 2)):
            drawn = [draw() for _ in range(count * share // 10)]
            with RawPeer(self._endpoint(plane), REQUESTS, b"PUSH") as peer:
                peer.say(*(case.frames for case in drawn))
                before = self._reckon(child, what, before, drawn)
        self._visitors(plane, count * 2 // 10, before)

    def _visitors(self, plane: Plane, count: int, before: Counter[str]) -> None:
        while count:
            sent: list[Case] = []
            with ExitStack() as stack:  # they stay until all is counted: what comes of clients that went is not theirs
                while count and len(sent) < VISITORS * VISIT:
                    visitor = stack.enter_context(Visitor(self._endpoint(plane), plane, self._rngs[plane]))
                    cases = [visitor.case() for _ in range(min(VISIT, count))]
                    visitor.say(*cases)
                    sent, count = sent + cases, count - len(cases)
                before = self._reckon(self._server(plane), "visitors", before, sent)

    def _broker(self, place: str, learner: str, *flags: str) -> Child:
        """Start a broker whose learner is to be played by a `Forger`."""
        places = ["--broker.endpoint", f"ipc://{self.folder}/{place}"]
        broker = self.start("broker", *places, "--learner.endpoint", f"ipc://{self.folder}/{learner}", *flags)
        self.wait_for(lambda: broker.page().get("state") == "ready", f"{broker.spec.name} does not start")
        return broker

    def _forge(self, broker: Child, place: str, learner: str, messages: int) -> None:
        """Publish forged weights to a broker, then a version that it has to accept."""
        with self._forger(place, learner) as forger:
            forger.wait_for_subscriber()
            cases = [forger.case() for _ in range(messages)]
            forger.publish(*cases)
            self._reckon(broker, "forged", Counter(), cases)
            forger.publish(forger.genuine())
            self._wait_for_version(broker, GENUINE_VERSION)

    def _forge_news(self, broker: Child, place: str, learner: str, messages: int) -> None:
        """Publish forged news to a broker that takes weights on news, then genuine news."""
        with self._forger(place, learner) as forger:
            for _ in ("news", "weights"):  # it has no weights yet
                forger.wait_for_subscriber()
            forger.publish(forger.genuine())
            self._wait_for_version(broker, GENUINE_VERSION)
            cases = [forger.case_of_news() for _ in range(messages)]
            forger.publish(*cases)
            self._reckon(broker, "forged news", Counter(), cases)
            forger.publish(forger.genuine_news(GENUINE_VERSION + 1))
            forger.wait_for_subscriber()
            forger.publish(forger.genuine(GENUINE_VERSION + 1))
            self._wait_for_version(broker, GENUINE_VERSION + 1)

    @contextmanager
    def _forger(self, place: str, learner: str) -> Iterator[Forger]:
        """A `Forger` in place of the learner, and a client whose HELLO determines the network of the broker."""
        real, rng = capture_version(self._endpoint(Plane.ROLLOUTS)), self._rngs[Plane.WEIGHTS]
        client = Endpoint(path=f"{self.folder}/{place}"), Plane.INFERENCE, rng
        with Forger(Endpoint(path=f"{self.folder}/{learner}"), real, rng) as forger, Visitor(*client, asks=False):
            yield forger

    def _wait_for_version(self, broker: Child, version: int) -> None:
        complaint = f"{broker.spec.name} does not take the weights that follow what was forged"
        self.wait_for(lambda: broker.page().get("policy_version") == version, complaint)

    def _reckon(self, child: Child, what: str, before: Counter[str], cases: Sequence[Case]) -> Counter[str]:
        """Wait until all that must be refused is counted, and compare each reason; returns the counts so far."""
        name = child.spec.name
        self.sent[name][what] += len(cases)
        refused = [case.refused for case in cases if case.refused]
        certain: Counter[str] = Counter(reasons[0] for reasons in refused if len(reasons) == 1)
        possible: Counter[str] = Counter(each for reasons in refused if len(reasons) > 1 for each in reasons)
        unknown = sum(case.refused is None for case in cases)
        least = len(refused)
        complaint = f"{name} has not refused {least} {what}"
        self.wait_for(lambda: (count_refusals(child) - before).total() >= least, complaint)
        now = wait_until_quiet(child)
        found = now - before
        bounds = {reason: (certain[reason], certain[reason] + possible[reason] + unknown) for reason in found | certain}
        for reason, (low, high) in [("anything", (least, least + unknown)), *bounds.items()]:
            many = found.total() if reason == "anything" else found[reason]
            if not low <= many <= high:
                self.wrong.append(f"{name}, {what}: {many} refused as {reason}, expected {low} to {high}")
        return now

    def _server(self, plane: Plane) -> Child:
        return self.child(f"{SERVERS[plane]} 0")

    def _endpoint(self, plane: Plane) -> Endpoint:
        return Endpoint.parse(socket_endpoint(self.folder, SERVERS[plane]))

    def _target(self, plane: Plane) -> AttackTarget:
        host, _, port = json.loads(self._server(plane).spec.status.read_text())["health"].rpartition(":")
        return AttackTarget(plane, self._endpoint(plane), (host, int(port)), self._rngs[plane])


def wait_until_quiet(*children: Child) -> Counter[str]:
    """Wait until these services have refused nothing for a while; returns what they have refused so far."""
    found, since = count_refusals(*children), time.monotonic()
    while time.monotonic() - since < QUIET_S:
        time.sleep(0.2)
        if (now := count_refusals(*children)) != found:
            found, since = now, time.monotonic()
    return found


def count_refusals(*children: Child) -> Counter[str]:
    """Messages refused so far, by reason."""
    return sum((Counter(child.page().get("refused_by_reason", {})) for child in children), Counter())
