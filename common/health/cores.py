"""The cores of a run's machines, and whether they are full."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from zerobeast.common.health.figures import number, share
from zerobeast.common.health.views import ServiceView

FULL = 0.9  #: share of the cores in use
CROWDED = 0.5  #: pressure from which on cores are full, whatever other programs use them


class Cores(NamedTuple):
    """Of all machines of a run together."""

    present: float  #: that its services may use; 0 if unknown
    used: float  #: by its services
    pressure: float  #: share of the time in which processes wait for a core

    @property
    def full(self) -> str:
        """A clause if they are full, else empty."""
        if not self.present or (self.used < FULL * self.present and self.pressure < CROWDED):
            return ""
        waits = f" (this run uses {self.used:.1f}, and processes wait {share(self.pressure)} of the time)"
        named = f"the {self.present:g} cores are full" if self.present != 1 else "the only core is full"
        return named + waits * (self.pressure >= CROWDED)


def cores_of(services: Sequence[ServiceView]) -> Cores:
    """The cores that these services may use. Containers of one machine share them."""
    machines: dict[str, list[dict[str, Any]]] = {}
    for view in services:
        machines.setdefault(str(view.page.get("machine") or view.page.get("host")), []).append(view.page)
    pressure = min(max(number(page, "cpu_pressure") or 0.0 for page in pages) for pages in machines.values())
    return Cores(sum(map(_cores, machines.values())), sum(map(cpu_share, services)), pressure)


def cpu_share(view: ServiceView) -> float:
    """Cores in use by a service."""
    return view.cpu_share if view.cpu_share is not None else number(view.page, "cpu_share") or 0.0


def _cores(pages: list[dict[str, Any]]) -> float:
    """Cores of the processes on a machine: each may be bound to some, and each container may have a quota."""
    everywhere, quotas = set[int](), dict[str, float]()
    for page in pages:
        host, cpus, ids = str(page.get("host")), number(page, "cpus") or 0.0, page.get("cpu_ids")
        own = {each for each in ids if isinstance(each, int)} if isinstance(ids, list) else set()
        everywhere |= own
        quotas[host] = min(quotas.get(host, math.inf), cpus if 0 < cpus < len(own) else math.inf)
    return min(len(everywhere) or max(number(page, "cpus") or 0.0 for page in pages), sum(quotas.values()))
