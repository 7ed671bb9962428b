"""`beast chaos search`: it passes runs that go on, and finds one that stands still."""

import logging

from zerobeast_tools.chaos.search import SearchTrial, attempt, main
from zerobeast_tools.chaos.unreliable_port import Faults


def test_runs_go_on_whatever_is_refused_late_or_lost() -> None:
    assert main(["--trials", "3", "--seconds", "1", "--seed", "10"]) == 0
    assert not logging.root.manager.disable, "the log is silent for the search alone"


def test_a_run_that_learns_nothing_is_found_to_stand_still() -> None:
    trial = SearchTrial(
        seed=1,
        services={"actor": 1, "envserver": 1, "broker": 1},
        settings={
            "actor.env_groups": 1,
            "actor.envs_per_group": 4,
            "learner.unroll_length": 2,
            "learner.batch_size": 8,
            "learner.window": 1,
        },
        rollouts=Faults(malformed=0.5),
    )
    assert not attempt(trial, 1.0).why, "half of them are enough"
    assert "stood still" in attempt(trial._replace(rollouts=Faults(malformed=1.0)), 60.0, standstill_s=5.0).why
