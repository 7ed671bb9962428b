"""Faults of the network, made by proxies, and how a run comes through it: one fault on one plane at a time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from zerobeast.common.errors import BeastError
from zerobeast.tools.chaos.network_run import LARGE, SMALL, ProxiedRun
from zerobeast.tools.chaos.proxy import Proxy

RECOVERY_LIMIT_S = 60.0
RATE_S = 2.0
LEFT = 0.4  #: of the rate, that has to come back: the machine has other work too
#: updates that rollouts make which were under way: each group's window, the learner's queue, the batch in work
UNDER_WAY = 8
MEMORY_MIB = 64.0  #: that a process may grow by under one fault


class NetworkFault(NamedTuple):
    """Something that happens to a plane."""

    name: str
    lasts_s: float
    begin: Callable[[Proxy], None]
    end: Callable[[Proxy], None]
    slows: bool = False  #: training goes on meanwhile, at a lower rate
    flags: Sequence[str] = SMALL  #: of a run that it is worth trying with

    @property
    def stops(self) -> bool:
        """Whether no training is possible meanwhile, with old weights apart."""
        return self.lasts_s > 0 and not self.slows


class NetworkTrial(NamedTuple):
    """How a run came through one fault.

    Attributes:
      fault: and the plane that it happened to.
      recovery_s: from its end until rollouts made afterwards are learned from; on the weights plane, until the broker
        infers with weights of afterwards. Infinity where that never happened, None where nothing had to recover.
      cut: rollouts in progress that began anew.
      trouble: which promise broke; empty where none did.
      lost: rollouts that were acknowledged and never learned from.
    """

    fault: str
    recovery_s: float | None
    cut: int
    trouble: str
    lost: int = 0


def _nothing(_proxy: Proxy) -> None:
    pass


def _slow(proxy: Proxy, delay_s: float = 0.0, bytes_per_s: float = math.inf) -> None:
    proxy.delay_s, proxy.bytes_per_s = delay_s, bytes_per_s


def faults(hole_s: float = 30.0, slow_s: float = 10.0) -> dict[str, NetworkFault]:
    """All of them by name, with the seconds for which a plane is cut off or slow."""
    every = (
        NetworkFault("connections cut by RST", 0.0, lambda proxy: proxy.cut(reset=True), _nothing),
        NetworkFault("connections cut by FIN", 0.0, lambda proxy: proxy.cut(reset=False), _nothing),
        NetworkFault("connections forgotten by a firewall", 0.0, Proxy.stall, _nothing),
        NetworkFault(
            f"requests lost for {hole_s:g} s", hole_s, lambda proxy: proxy.hold(to_clients=False), Proxy.release
        ),
        NetworkFault(
            f"replies lost for {hole_s:g} s", hole_s, lambda proxy: proxy.hold(to_server=False), Proxy.release
        ),
        NetworkFault(f"black hole for {hole_s:g} s", hole_s, Proxy.hold, Proxy.release),
        NetworkFault("100 ms of delay", slow_s, lambda proxy: _slow(proxy, delay_s=0.1), _slow, slows=True),
        NetworkFault("1 MB/s", slow_s, lambda proxy: _slow(proxy, bytes_per_s=1e6), _slow, slows=True, flags=LARGE),
        NetworkFault("20 kB/s", slow_s, lambda proxy: _slow(proxy, bytes_per_s=2e4), _slow, slows=True),
    )
    return {fault.name: fault for fault in every}


def attempt(
    run: ProxiedRun, plane: str, fault: NetworkFault, chance: random.Random, rate_s: float = RATE_S
) -> NetworkTrial:
    """Cause a fault at a random moment and watch.

    Args:
      run: under which it happens.
      plane: that it happens to.
      fault: what happens.
      chance: decides about the moment.
      rate_s: over which rates are taken, before and after.
    """
    name = f"{plane}: {fault.name}"
    run.watch(chance.random())
    rate, cut, memory = run.rate(0.0, rate_s), run.page("actor")["rollouts_cut"], run.memory()
    try:
        went_on = _happens(run, run.proxies[plane], fault)
        recovery_s = _recovery(run, plane)
        kept = run.until(lambda: run.rate(0.0, rate_s) >= LEFT * rate, RECOVERY_LIMIT_S) < math.inf
    except BeastError as error:
        return NetworkTrial(name, math.inf, 0, str(error))
    grown = run.grown(memory)
    troubles = {
        "never recovered": recovery_s == math.inf,
        "the rate did not come back": not kept,
        "training stood still": fault.slows and not went_on,
        "training went on, so nothing happened": went_on and fault.stops and plane != "weights",
        f"memory grew: {grown}": max(grown.values()) > MEMORY_MIB,
    }
    return NetworkTrial(name, recovery_s, int(run.page("actor")["rollouts_cut"]) - cut, trouble(troubles))


def settled(run: ProxiedRun, trial: NetworkTrial) -> NetworkTrial:
    """Hold what was acknowledged against what was learned from, since the start of the run."""
    try:
        lost, twice = run.unsettled()
    except BeastError:  # which the trial has told already
        return trial
    troubles = {
        trial.trouble: bool(trial.trouble),
        f"{lost} acknowledged rollouts were not learned from": lost > 0,
        f"{twice} rollouts were learned from twice": twice > 0,
    }
    return trial._replace(lost=lost, trouble=trouble(troubles))


def trouble(sentences: Mapping[str, bool]) -> str:
    """Those that hold."""
    return "; ".join(sentence for sentence, holds in sentences.items() if holds)


def _happens(run: ProxiedRun, proxy: Proxy, fault: NetworkFault) -> bool:
    """Let it happen; whether training went on meanwhile."""
    before = run.version
    fault.begin(proxy)
    run.watch(fault.lasts_s)
    if fault.slows:
        run.until(lambda: run.version > before + UNDER_WAY, RECOVERY_LIMIT_S)
    went_on = run.version > before + UNDER_WAY
    fault.end(proxy)
    return went_on


def _recovery(run: ProxiedRun, plane: str) -> float:
    healed_at = run.version
    if plane == "weights":
        return run.until(lambda: run.page("broker").get("policy_version", 0) > healed_at + UNDER_WAY, RECOVERY_LIMIT_S)
    return run.until(lambda: run.version > healed_at + UNDER_WAY, RECOVERY_LIMIT_S)
