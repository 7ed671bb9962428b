"""DNS names that change to another address, or do not resolve for a while, during a run."""

import math
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from zerobeast.common.files import run_files
from zerobeast.common.process.roles import SERVERS
from zerobeast_tools.chaos.network_faults import MIN_RATE_SHARE, RATE_S, RECOVERY_LIMIT_S, NetworkTrial, join_troubles
from zerobeast_tools.chaos.network_run import MAX_UNDER_WAY, SMALL_FLAGS, WatchedRun
from zerobeast_tools.chaos.network_service import lookups, write_hosts
from zerobeast_tools.throwaway_run import PORTS, unused_host

OLD_HOST, NEW_HOST = unused_host(), unused_host()
LOOKUPS_PER_S = 2.0  #: of one name by one process, at most
STAY_S = 15.0  #: for which a changed name must change nothing, as long as its old server is there
SLOW_S = 3.0  #: that a lookup takes if it finds nothing
SETTLED_S = 1.0  #: after this long, every health page is newer than the start of the wait


class NamedRun(WatchedRun):
    """All four services, each server at a name of its own."""

    def __init__(self, folder: Path) -> None:
        self.hosts = folder / "hosts"
        self.meaning: dict[str, Sequence[str]] = dict.fromkeys(SERVERS, (OLD_HOST,))
        super().__init__([*SMALL_FLAGS, "--learner.checkpoint_every_s", "0.5"], folder, ["--hosts", str(self.hosts)])
        self.endpoints = {role: f"tcp://{OLD_HOST}:{port}" for role, port in PORTS.items()}

    def __enter__(self) -> Self:
        self.mean({})
        super().__enter__()
        self.begin_all()
        return self

    def reachable_endpoints(self, _role: str) -> Mapping[str, str]:
        """See the base class."""
        return {role: f"tcp://{name_of(role)}:{port}" for role, port in PORTS.items()}

    def mean(self, changed: Mapping[str, Sequence[str]], delay_s: float = 0.0) -> None:
        """Make names of servers resolve to other addresses, or to none."""
        self.meaning |= changed
        write_hosts(self.hosts, {name_of(role): hosts for role, hosts in self.meaning.items()}, delay_s)

    def second(self, role: str, pause_s: float = 0.0) -> None:
        """Start another server of a role, at the new address."""
        self.endpoints[role] = f"tcp://{NEW_HOST}:{PORTS[role]}"
        self.begin(role, pause_s=pause_s)

    def lines_about(self, role: str) -> int:
        """How often the logs of actors report what the name of a server resolves to."""
        logs = (self.config.folder / run_files.LOGS).glob("actor-*.log")
        names = (f"{name_of(role)}:", f"{name_of(role)!r}")
        lines = (line for log in logs for line in log.read_text().splitlines()[1:])  # the first shows the settings
        return sum(" I " in line and any(name in line for name in names) for line in lines)

    def looked_up_too_often(self) -> bool:
        """Whether some process looks up a name in a loop."""
        per_second = Counter((int(at), process, name) for at, process, name in lookups(self.hosts))
        return max(per_second.values()) > LOOKUPS_PER_S


def name_of(role: str) -> str:
    """The name of a server."""
    return f"{role}.test"


def trials(folder: Path) -> Iterator[NetworkTrial]:
    """Everything that happens to names, during one run."""
    with NamedRun(folder) as run:
        yield forget_names(run)
        for role in SERVERS:
            yield move_name(run, role)


def move_name(run: NamedRun, role: str) -> NetworkTrial:
    """The name of a running server changes its address; the server ends later."""
    logged, cut = run.lines_about(role), run.read_counter("actor", "rollouts_cut")
    if role != "learner":  # a run has only one
        run.second(role)
        run.until(lambda: len(run.pages(role)) > 1)
    run.mean({role: (NEW_HOST,)})
    stayed, early = _goes_on(run, may_move=role == "broker"), run.read_counter("actor", "rollouts_cut") - cut
    run.end([f"{role} 0"], signal.SIGKILL)
    if role == "learner":
        run.second(role)
        run.watch.follow_learner()
    recovery_s = _recovers(run)
    troubles = {
        "running connections did not stay": not stayed,
        f"{early} rollouts were cut short while the old server was there": bool(early),
        "never recovered": recovery_s == math.inf,
        f"{run.lines_about(role) - logged} log lines": run.lines_about(role) != logged + 1,
        "looked up too often": run.looked_up_too_often(),
    }
    cut = run.read_counter("actor", "rollouts_cut") - cut
    return NetworkTrial(
        f"the DNS name of the {role} moves to another address", recovery_s, cut, join_troubles(troubles)
    )


def forget_names(run: NamedRun) -> NetworkTrial:
    """No name resolves for a while, and the lookups that fail are slow."""
    meant, logged = dict(run.meaning), {role: run.lines_about(role) for role in SERVERS}
    rate = run.rate(0.0, RATE_S)
    run.mean(dict.fromkeys(SERVERS, ()), SLOW_S)
    stayed = _goes_on(run) and run.rate(0.0, RATE_S) >= MIN_RATE_SHARE * rate
    run.mean(meant)
    run.wait(STAY_S)
    lines = {role: run.lines_about(role) - before for role, before in logged.items()}
    troubles = {
        "running connections did not stay": not stayed,
        f"log lines: {lines}": set(lines.values()) != {2},
        "looked up too often": run.looked_up_too_often(),
    }
    return NetworkTrial(
        f"no name resolves for {STAY_S:g} s, lookups take {SLOW_S:g} s", trouble=join_troubles(troubles)
    )


def _recovers(run: NamedRun) -> float:
    """Seconds until learner and broker are past what is under way now, with rollouts of every group.

    Pages that are read before SETTLED_S have passed may be older than now.
    """
    version = run.watch.version
    run.wait(SETTLED_S)
    consumed = run.streams()

    def learns() -> bool:
        if min(run.watch.version, run.page("broker").get("policy_version", 0)) <= version + MAX_UNDER_WAY:
            return False
        now = run.streams()
        delivered = [now[stream] > consumed.get(stream, 0) + MAX_UNDER_WAY for stream in now]
        return len(delivered) == run.config.actor.env_groups and all(delivered)

    return SETTLED_S + run.until(learns, RECOVERY_LIMIT_S)


def _goes_on(run: NamedRun, *, may_move: bool = False) -> bool:
    """Whether training goes on; with `may_move`, a group may move to a new broker between two rollouts."""
    before, moves = run.watch.version, run.read_counter("actor", "moves")
    run.wait(STAY_S)
    return run.watch.version > before + MAX_UNDER_WAY and (may_move or run.read_counter("actor", "moves") == moves)
