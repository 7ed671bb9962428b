"""Planes are cut, stalled, held and slowed down under a run whose time-outs are short: it goes on by itself."""

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.short_timeouts_service import shorten_timeouts
from zerobeast_tools.chaos.network_faults import NetworkTrial, attempt, compare_balance, list_faults
from zerobeast_tools.chaos.network_run import PLANES, SMALL_FLAGS, ProxiedRun

HURRY = 5.0  #: a connection without a sign of life is dead after 2 s
HOLE_S = 3.0
FAULTS = {fault.name: fault for fault in list_faults(hole_s=HOLE_S, slow_s=0.0)}
CUT, ENDED, FORGOTTEN = "connections cut by RST", "connections cut by FIN", "connections dropped by a firewall"
CASES = [
    *[(plane, FORGOTTEN) for plane in PLANES],
    ("inference", ENDED),
    ("rollouts", CUT),
    ("steps", f"black hole for {HOLE_S:g} s"),
    ("weights", f"black hole for {HOLE_S:g} s"),
    ("rollouts", f"requests lost for {HOLE_S:g} s"),
    ("inference", f"replies lost for {HOLE_S:g} s"),
    ("steps", "100 ms of delay"),
    ("rollouts", "20 kB/s"),
]


@contextmanager
def hurried_run(*flags: str) -> Iterator[ProxiedRun]:
    with tempfile.TemporaryDirectory(prefix="beast-") as folder, shorten_timeouts(HURRY):
        with ProxiedRun((*SMALL_FLAGS, *flags), Path(folder)) as run:
            yield run


@pytest.fixture(scope="module")
def run() -> Iterator[ProxiedRun]:
    with hurried_run() as run:
        yield run


@pytest.mark.parametrize(("plane", "fault"), CASES)
def test_training_goes_on_by_itself_after_a_fault_of_one_plane(run: ProxiedRun, plane: str, fault: str) -> None:
    assert not attempt(run, plane, FAULTS[fault], random.Random(1), rate_s=1.0).trouble


def test_weights_are_pulled_again_after_faults() -> None:
    with hurried_run("--sync.rule", "every 2") as run:
        for fault in (CUT, FORGOTTEN, f"black hole for {HOLE_S:g} s"):
            assert not attempt(run, "weights", FAULTS[fault], random.Random(1), rate_s=1.0).trouble
        assert run.page("broker")["sync_bytes_saved"] > 0


def test_rollouts_acknowledged_meanwhile_were_learned_from_once(run: ProxiedRun) -> None:
    nothing = NetworkTrial("")
    assert compare_balance(run, nothing) == nothing
