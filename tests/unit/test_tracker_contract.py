"""Every tracker keeps the rules of one, with a library that records what it gets, and a fault breaks a rule by name."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest

from zerobeast.testing import tracker
from zerobeast.testing.rules import BrokenRule, Rule
from zerobeast.tracking.sinks import Tracked

HERE = "tests.unit.test_tracker_contract"


@pytest.fixture(params=["trackio", "wandb"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fake of the package of a tracker."""
    fake = MagicMock(__spec__=SimpleNamespace(name=request.param))
    monkeypatch.setitem(sys.modules, request.param, fake)
    fake.tracker = request.param
    return fake


@pytest.mark.parametrize("rule", tracker.RULES, ids=str)
def test_every_tracker_keeps_the_rules(rule: Rule, library: Any, tmp_path: Path) -> None:
    rule(library.tracker, tmp_path)
    assert library.init.call_args.kwargs["resume"] == "allow"
    assert {"project", "0a1b2c3d"} <= set(re.findall(r"\w+", str(library.init.call_args)))
    assert library.finish.called or library.init.return_value.finish.called


class Strict:
    """A tracker with faults: it takes finite points of rising steps alone, refuses a run twice and takes values out."""

    runs: ClassVar[set[Path]] = set()

    def __init__(self, run: Tracked) -> None:
        if run.folder in self.runs:
            raise ValueError("this run exists")
        self.runs.add(run.folder)
        self.newest = 0

    def write(self, values: Any, agent_steps: int) -> None:
        if agent_steps < self.newest or not all(abs(value) < 1e9 for value in values.values()):
            raise ValueError("no such point")
        self.newest = agent_steps
        values.clear()

    def close(self) -> None:
        pass


@pytest.mark.parametrize("rule", tracker.RULES, ids=str)
def test_a_fault_breaks_the_rule_that_names_it(rule: Rule, tmp_path: Path) -> None:
    with pytest.raises(BrokenRule) as broken:
        rule(f"{HERE}:Strict", tmp_path)
    assert str(broken.value).startswith(rule.name)
