"""Each rule of the contract of a backend notices a fault, and an environment without one keeps all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.build.faulty import FAULTS, LEAKED
from tests.helpers import bring
from zerobeast.services.envserver.backend import GROUP
from zerobeast.testing import backend
from zerobeast.testing.rules import BrokenRule


@pytest.fixture(autouse=True)
def _brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(tmp_path)
    with bring(tmp_path, GROUP, {"faulty-1.0": "faulty/* = tests.build.faulty:BACKEND"}):
        yield
    for process in LEAKED:
        process.kill()
        process.wait()
    LEAKED.clear()


@pytest.mark.parametrize("fault", [fault for fault, broken in FAULTS.items() if broken])
def test_a_fault_breaks_the_rule_that_forbids_it(fault: str) -> None:
    (rule,) = (rule for rule in backend.RULES if str(rule) == FAULTS[fault])
    with pytest.raises(BrokenRule, match=f"^{rule}: "):
        rule(f"faulty/{fault}")
    rule("faulty/none")


def test_there_is_a_fault_for_each_rule() -> None:
    assert {str(rule) for rule in backend.RULES} == {*FAULTS.values()} - {""}
