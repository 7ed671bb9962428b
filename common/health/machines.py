"""The cores of a run's machines: how many its services have there together, and whether these are full."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from zerobeast.common.health.figures import number, share
from zerobeast.common.health.views import ServiceView

FULL = 0.9  #: share of the cores in use
CROWDED = 0.5  #: pressure from which on cores are full, whatever other programs use them


class Machine(NamedTuple):
    cores: float  #: that the services there may use together; 0 if unknown
    used: float  #: by them
    pressure: float  #: share of the time in which processes wait for a core


def machines_of(services: Iterable[ServiceView]) -> list[Machine]:
    """The machines on which these services run, which containers share."""
    found: dict[str, list[ServiceView]] = {}
    for view in services:
        found.setdefault(str(view.page.get("machine") or view.page.get("host")), []).append(view)
    return [
        Machine(
            _cores([view.page for view in views]),
            sum(map(cpu_share, views)),
            max(number(view.page, "cpu_pressure") or 0.0 for view in views),
        )
        for views in found.values()
    ]


def cpu_share(view: ServiceView) -> float:
    """Cores in use by a service."""
    return view.cpu_share if view.cpu_share is not None else number(view.page, "cpu_share") or 0.0


def fullness(machines: Sequence[Machine]) -> str:
    """A clause if the cores of all these machines are full, else empty."""
    if not all(each.cores and max(each.used / each.cores / FULL, each.pressure / CROWDED) >= 1 for each in machines):
        return ""
    cores, used = (sum(each[field] for each in machines) for field in (0, 1))
    waits = min(each.pressure for each in machines)
    more = f" (this run uses {used:.1f}, and processes wait {share(waits)} of the time)" if waits >= CROWDED else ""
    return f"the {cores:g} cores are full{more}" if cores != 1 else f"the only core is full{more}"


def _cores(pages: list[dict[str, Any]]) -> float:
    """Cores of processes together: each may be bound to some, and each container may have a quota."""
    everywhere, quotas = set[int](), dict[str, float]()
    for page in pages:
        host, cpus, ids = str(page.get("host")), number(page, "cpus") or 0.0, page.get("cpu_ids")
        own = {each for each in ids if isinstance(each, int)} if isinstance(ids, list) else set()
        everywhere |= own
        quotas[host] = min(quotas.get(host, math.inf), cpus if 0 < cpus < len(own) else math.inf)
    return min(len(everywhere) or max(number(page, "cpus") or 0.0 for page in pages), sum(quotas.values()))
