"""Nothing is wrong with deploy/kubernetes as kustomize renders it, as far as any check can tell."""

from __future__ import annotations

import pytest

from tests.unit.kubernetes import test_network, test_pods, test_settings, test_wiring
from tests.unit.kubernetes.checks import CHECKS, faults
from tests.unit.kubernetes.render import OVERLAYS, needs_kubectl, render

pytestmark = [pytest.mark.unit, needs_kubectl]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_is_wrong(overlay: str) -> None:
    assert faults(render(overlay)) == []


def test_every_check_has_been_seen_to_fail() -> None:
    broken = test_network.BROKEN + test_pods.BROKEN + test_settings.BROKEN + test_wiring.BROKEN
    assert {case.check for case in broken} == set(CHECKS)
