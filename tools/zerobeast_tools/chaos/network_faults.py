"""Network faults, made by proxies, and how a run comes through them: one fault on one plane at a time."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from zerobeast_tools.chaos.network_run import LARGE_FLAGS, MAX_UNDER_WAY, SMALL_FLAGS, ProxiedRun
from zerobeast_tools.chaos.proxy import Proxy

RECOVERY_LIMIT_S = 60.0
RATE_S = 2.0
MIN_RATE_SHARE = 0.4  #: fraction of the rate that has to come back; the machine has other work too


class NetworkFault(NamedTuple):
    """Something that happens to a plane."""

    name: str
    lasts_s: float
    begin: Callable[[Proxy], None]
    end: Callable[[Proxy], None] = lambda _proxy: None
    slows: bool = False  #: training goes on meanwhile, at a lower rate
    flags: Sequence[str] = SMALL_FLAGS  #: of a run that the fault is worth trying on


class NetworkTrial(NamedTuple):
    """How a run came through one fault.

    Attributes:
      fault: its name.
      recovery_s: from its end until rollouts made afterwards are learned from; on the weights plane, until the broker
        infers with weights made afterwards. Infinity if that never happened, None if nothing had to recover.
      cut: rollouts in progress that had to start again.
      trouble: which guarantee broke; empty if none did.
      lost: rollouts that were completed and are not accounted for.
      plane: that the fault happened to; empty for all of them.
    """

    fault: str
    recovery_s: float | None = None
    cut: int = 0
    trouble: str = ""
    lost: int = 0
    plane: str = ""


BEGUN_S = 1.0  #: a fast run makes hundreds of updates before the proxy has noticed


def list_faults(hole_s: float = 30.0, slow_s: float = 10.0) -> list[NetworkFault]:
    """All faults; the arguments are the seconds for which a plane is cut off or slow."""
    return [
        NetworkFault("connections cut by RST", 0.0, partial(Proxy.cut, reset=True)),
        NetworkFault("connections cut by FIN", 0.0, partial(Proxy.cut, reset=False)),
        NetworkFault("connections dropped by a firewall", 0.0, Proxy.stall),
        NetworkFault(f"requests lost for {hole_s:g} s", hole_s, partial(Proxy.hold, to_clients=False), Proxy.release),
        NetworkFault(f"replies lost for {hole_s:g} s", hole_s, partial(Proxy.hold, to_server=False), Proxy.release),
        NetworkFault(f"black hole for {hole_s:g} s", hole_s, Proxy.hold, Proxy.release),
        NetworkFault("100 ms of delay", slow_s, partial(Proxy.slow, delay_s=0.1), Proxy.slow, slows=True),
        NetworkFault("1 MB/s", slow_s, partial(Proxy.slow, bytes_per_s=1e6), Proxy.slow, slows=True, flags=LARGE_FLAGS),
        NetworkFault("20 kB/s", slow_s, partial(Proxy.slow, bytes_per_s=2e4), Proxy.slow, slows=True),
    ]


def attempt(
    run: ProxiedRun, plane: str, fault: NetworkFault, chance: random.Random, rate_s: float = RATE_S
) -> NetworkTrial:
    """Cause a fault at a random moment and watch.

    Args:
      run: the run that it happens to.
      plane: the plane that it happens to.
      fault: what happens.
      chance: picks the moment.
      rate_s: over which the rates before and after are measured.

    Raises:
      BeastError: a service has ended.
    """
    run.wait(chance.random())
    rate, cut, memory = run.rate(0.0, rate_s), run.read_counter("actor", "rollouts_cut"), run.memory()
    went_on = _happens(run, run.proxies[plane], fault)
    recovery_s = _recovery(run, plane)
    kept = run.until(lambda: run.rate(0.0, rate_s) >= MIN_RATE_SHARE * rate, RECOVERY_LIMIT_S) < math.inf
    stops = fault.lasts_s > 0 and not fault.slows and plane != "weights"  # with old weights training goes on
    troubles = {
        "never recovered": recovery_s == math.inf,
        "the rate did not come back": not kept,
        "training stood still": fault.slows and not went_on,
        "training went on, so nothing happened": stops and went_on,
    } | run.growth(memory)
    cut = run.read_counter("actor", "rollouts_cut") - cut
    return NetworkTrial(fault.name, recovery_s, cut, join_troubles(troubles), plane=plane)


def compare_balance(run: ProxiedRun, trial: NetworkTrial) -> NetworkTrial:
    """Compare what was completed with what was learned from, since the start of the run."""
    balance = run.watch.draw_balance()
    troubles = filter(None, [trial.trouble, *run.watch.wrong_accounts(balance)])
    return trial._replace(lost=max(0, balance.gap), trouble="; ".join(troubles))


def join_troubles(sentences: Mapping[str, bool]) -> str:
    """The sentences that hold, joined."""
    return "; ".join(sentence for sentence, holds in sentences.items() if holds)


def _happens(run: ProxiedRun, proxy: Proxy, fault: NetworkFault) -> bool:
    """Let the fault happen; returns whether training went on meanwhile."""
    fault.begin(proxy)
    begun_s = min(BEGUN_S, fault.lasts_s)
    run.wait(begun_s)
    before = run.watch.version
    run.wait(fault.lasts_s - begun_s)
    if fault.slows:
        run.until(lambda: run.watch.version > before + MAX_UNDER_WAY, RECOVERY_LIMIT_S)
    went_on = run.watch.version > before + MAX_UNDER_WAY
    fault.end(proxy)
    return went_on


def _recovery(run: ProxiedRun, plane: str) -> float:
    goal = run.watch.version + MAX_UNDER_WAY
    if plane == "weights":
        return run.until(lambda: run.page("broker").get("policy_version", 0) > goal, RECOVERY_LIMIT_S)
    return run.until(lambda: run.watch.version > goal, RECOVERY_LIMIT_S)
