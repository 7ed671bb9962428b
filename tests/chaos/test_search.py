"""`beast chaos search`: it passes runs that go on, and finds one that stands still."""

import logging

import pytest

from zerobeast.services.learner import intake
from zerobeast.tools.chaos import search
from zerobeast.tools.chaos.search import SearchTrial, attempt, main
from zerobeast.tools.chaos.unreliable_port import Faults

pytestmark = pytest.mark.chaos


def test_runs_go_on_whatever_is_refused_late_or_lost() -> None:
    assert main(["--trials", "3", "--seconds", "1", "--seed", "10"]) == 0
    assert not logging.root.manager.disable, "the log is silent for the search alone"


def test_a_run_without_short_batches_is_found_to_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    peace = Faults()
    trial = SearchTrial(
        seed=1,
        actors=1,
        env_servers=1,
        brokers=1,
        env_groups=1,
        envs_per_group=4,
        unroll_length=2,
        batch_size=8,
        window=1,
        max_policy_lag=20,
        collect_ahead=True,
        steps=peace,
        inference=peace,
        rollouts=Faults(malformed=0.5),
    )
    assert not attempt(trial, 1.0).why
    monkeypatch.setattr(search, "STANDSTILL_S", 5.0)
    monkeypatch.setattr(intake, "exhausted", lambda *_: False)
    assert "stood still" in attempt(trial, 60.0).why
