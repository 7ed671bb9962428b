"""All checks of a set of objects. Each is a function from objects to sentences that name the object at fault."""

from __future__ import annotations

from tests.unit.kubernetes import network, probes, safety, settings, wiring
from tests.unit.kubernetes.objects import Objects

CHECKS = (*wiring.CHECKS, *network.CHECKS, *probes.CHECKS, *safety.CHECKS, *settings.CHECKS)


def faults(objects: Objects) -> list[str]:
    """What is wrong, in sentences; empty where nothing is."""
    return [sentence for check in CHECKS for sentence in check(objects)]
