"""A run that stands still says so and why, and sets the exit code. Any page is judged, whatever it holds."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.test_health_verdict import PAGES, services
from zerobeast.common.health.command import exit_code, render
from zerobeast.common.health.figures import ServiceView
from zerobeast.common.health.hops import EDGES_S
from zerobeast.common.health.verdict import Verdict, judge, ready
from zerobeast.common.process.roles import ROLES

STALLED = {"stalled": True, "stalled_s": 75.0}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"learner": STALLED, "actor": {"waiting_credit_fraction": 0.9}},
            "stalled for 0:01:15: the actors wait for the learner",
        ),
        (
            {"actor": STALLED | {"waiting_connect_fraction": 1.0}},
            "stalled for 0:01:15: the actors wait for sessions",
        ),
        (
            {"learner": STALLED | {"refused_since_progress": {"values": 1200, "terms": 2}}},
            "stalled for 0:01:15: the actors wait for brokers; "
            "learner 0 refuses what it is sent (1,200 x values, 2 x terms)",
        ),
        (
            {"actor": STALLED | {"refused_since_progress": {"payload": 7}}},
            "stalled for 0:01:15: the actors wait for brokers; actor 0 refuses what it is sent (7 x payload)",
        ),
        (
            {"actor": STALLED | {"waiting_env_fraction": 1.0, "trouble": "the env-server at tcp://e:5550 sends NaN"}},
            "stalled for 0:01:15: the actors wait for env-servers; the env-server at tcp://e:5550 sends NaN",
        ),
        ({"broker": STALLED}, "not well: broker 0 stalled for 0:01:15"),
    ],
)
def test_a_run_that_stands_still_is_reported_with_since_when_and_why(changes: dict[str, Any], sentence: str) -> None:
    seen = services(**changes)
    assert judge(seen) == Verdict(sentence, good=False)
    assert exit_code(seen, judge(seen)) == 1
    assert "stalled" in render(seen, judge(seen), as_json_text=False)
    assert all(map(ready, seen)), "probes go by this: a broker that stalls must still be reached"


def test_one_stalled_actor_of_several_is_named_and_the_run_goes_on() -> None:
    other = ServiceView("actor 1", "actor", {"role": "actor", "state": "ready", **PAGES["actor"], **STALLED})
    assert judge([*services(), other]) == Verdict("not well: actor 1 stalled for 0:01:15", good=False)


def test_a_run_that_is_finished_does_not_stand_still() -> None:
    seen = services(learner={"agent_steps": 10_000}, actor=STALLED)
    assert judge(seen) == Verdict("finished: the run has reached its last step", good=True)
    assert exit_code(seen, judge(seen)) == 0


def test_a_run_whose_services_are_all_ready_but_one_role_missing_is_not_good() -> None:
    seen = services()[:3]
    assert exit_code(seen, judge(seen)) == 1
    assert exit_code([], judge([])) == 2
    assert exit_code(services(), judge(services())) == 0


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
HUGE = st.sampled_from([10**400, -(10**400), 1e308])  # an integer of JSON may be too large for a float
VALUES = LEAVES | HUGE | st.lists(LEAVES, max_size=2) | st.dictionaries(st.text(max_size=3), LEAVES | HUGE, max_size=2)
BUCKETS = st.lists(st.integers(-1, 1) | HUGE, min_size=len(EDGES_S) + 1, max_size=len(EDGES_S) + 1)
HOP = VALUES | st.fixed_dictionaries({"recent": BUCKETS, "recent_s": st.floats() | HUGE})
KEYS = (
    *sorted({key for page in PAGES.values() for key in page}),
    *"state stalled stalled_s cores cpu_pressure cpu_share".split(),
    *"loop_age_s unsaved trouble refused_since_progress".split(),
)
CHANGES = st.tuples(st.sampled_from(KEYS), VALUES) | st.tuples(
    st.just("hops"), st.fixed_dictionaries({"env_round_trip": HOP, "broker_round_trip": HOP})
)


@given(st.lists(st.tuples(st.sampled_from(ROLES), CHANGES), max_size=6), st.sets(st.sampled_from(ROLES)))
@example([("learner", ("total_steps", 0.5))], set())
@example([], {"broker", "envserver", "actor"})
def test_whatever_pages_hold_there_is_a_table_and_a_sentence(
    changes: list[tuple[str, tuple[str, Any]]], without: set[str]
) -> None:
    views = services(learner=STALLED)
    for role, (key, value) in changes:
        next(view for view in views if view.role == role).page[key] = value
    views = [view for view in views if view.role not in without]
    judged = judge(views)
    assert judged.sentence
    for as_json_text in (False, True):
        assert render(views, judged, as_json_text=as_json_text)
