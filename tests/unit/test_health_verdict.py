"""Whether a run trains, and what limits it: pages in, a verdict out, whatever they hold. And the table around it."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.build.pages import PAGES, Page, page_of, services
from zerobeast.common.health.command import exit_code, render
from zerobeast.common.health.figures import ServiceView
from zerobeast.common.health.hops import EDGES_S
from zerobeast.common.health.service_table import format_table
from zerobeast.common.health.verdict import ELSEWHERE_ROLE, Verdict, is_ready, judge
from zerobeast.common.process.roles import ROLES

KINDS = "finished unhealthy starting CPU-bound training-bound inference-bound environment-bound latency-bound".split()
STALLED = {"stalled": True, "stalled_s": 75.0}
TWO = ["a 0", "a 1"]
BOUND = {**dict.fromkeys(PAGES, TWO), "broker": TWO[:1]}


def with_round_trips(env_s: float, broker_s: float) -> dict[str, Page]:
    actor = page_of(env_round_trip=[env_s], broker_round_trip=[broker_s])
    return {
        "actor": actor,
        "envserver": page_of(env_step=[0.0075]),
        "broker": page_of(batch_wait=[0.0], forward=[0.0075]),
    }


@pytest.mark.parametrize(
    ("changes", "kind", "good"),
    [
        ({}, "latency-bound", True),
        ({"learner": {"waiting_fraction": 0.02}}, "training-bound", True),
        ({"learner": {"waiting_fraction": 0.02, "stale_fraction": 0.5}}, "training-bound", True),
        ({"learner": {"waiting_fraction": 0.02, "stale_fraction": 0.01}}, "training-bound", True),
        ({"learner": {"streams_held": 3}, "actor": {"waiting_credit_fraction": 0.7}}, "latency-bound", True),
        ({"learner": {"waiting_fraction": 0.0, "ratio_limited_fraction": 0.9}}, "training-bound", True),
        ({"learner": {"waiting_fraction": 0.0}, "broker": {"busy_fraction": 1.0}}, "training-bound", True),
        ({"learner": {"computing_s": 75.0, "agent_steps_per_s": 0.0}}, "training-bound", True),
        ({"broker": {"busy_fraction": 0.97}}, "inference-bound", True),
        ({"envserver": {"busy_fraction": 0.93}}, "environment-bound", True),
        ({"actor": {"busy_fraction": 0.99}}, "environment-bound", True),
        (with_round_trips(0.015, 0.035), "latency-bound", True),
        (with_round_trips(0.015, 0.015), "latency-bound", True),
        ({"learner": {"agent_steps_per_s": 0.0}}, "starting", True),
        ({"learner": {"agent_steps_per_s": 0.0}, "envserver": {"sessions_making": 2}}, "starting", True),
        ({"learner": {"agent_steps_per_s": 0.0, "replay_fill": 0.25}}, "starting", True),
        ({"learner": {"state": "starting"}}, "starting", False),
        ({"learner": {"progress_age_s": 99.0, "agent_steps": 10_000_000}, "actor": STALLED}, "finished", True),
        ({"broker": {"state": "draining"}}, "unhealthy", False),
        ({"actor": {"loop_age_s": 40.0}}, "unhealthy", False),
        ({"broker": STALLED}, "unhealthy", False),
        ({"actor": STALLED}, "unhealthy", False),
        ({"learner": {"unsaved": "the disk is full"}}, "unhealthy", False),
        ({"learner": {"unsaved": "the disk is full", "agent_steps": 10_000_000}}, "unhealthy", False),
    ],
)
def test_the_verdict_is_what_limits_a_run_or_prevents_training(changes: dict[str, Page], kind: str, good: bool) -> None:
    seen = services(**changes)
    verdict = judge(seen)
    assert (verdict.kind, verdict.good) == (kind, good)
    assert exit_code(seen, verdict) == (0 if good else 1)


def test_the_verdict_also_mentions_a_small_share_of_what_is_dropped() -> None:
    fresh, some = (judge(services(learner={"stale_fraction": share})).sentence for share in (0.01, 0.1))
    assert some != fresh
    assert some.startswith(fresh)


@pytest.mark.parametrize(
    ("changes", "causes"),
    [
        ({"learner": STALLED, "actor": {"waiting_credit_fraction": 0.9}}, ["the learner"]),
        ({"actor": STALLED | {"waiting_connect_fraction": 1.0}}, ["sessions"]),
        ({"learner": STALLED | {"refused_since_progress": {"values": 1200}}}, ["learner 0", "1,200 x values"]),
        ({"actor": STALLED | {"waiting_env_fraction": 1.0, "trouble": "it sends NaN"}}, ["env-servers", "NaN"]),
    ],
)
def test_a_run_standing_still_is_reported_with_since_when_and_why(changes: dict[str, Page], causes: list[str]) -> None:
    seen = services(**changes)
    verdict = judge(seen)
    assert not verdict.good
    assert [part for part in ["0:01:15", *causes] if part not in verdict.sentence] == []
    assert "stalled" in render(seen, verdict, as_json_text=False)
    assert all(map(is_ready, seen)), "probes go by this: a service that stalls must still be reached"


def named(services: list[ServiceView]) -> tuple[str, set[str]]:
    """The kind of the verdict, and which services or roles it names."""
    verdict = judge(services)
    return verdict.kind, {each for each in (*ROLES, *(view.name for view in services)) if each in verdict.sentence}


def test_what_starts_is_missing_or_not_well_is_named() -> None:
    fresh = [ServiceView(f"{role} 0", role) for role in PAGES]
    assert named(fresh) == ("starting", {*ROLES, *(view.name for view in fresh)})
    assert named([*services()[:3], fresh[3]]) == ("starting", {"actor", "actor 0"})
    assert named(fresh[1:]) == named([ServiceView("learner 0", "learner", code=2), *fresh[1:]])
    assert named([]) == ("unhealthy", set(ROLES))
    serving = [ServiceView("evaluator 0", "evaluator", PAGES["actor"]), *services()[:2]]
    assert named(serving)[0] != "unhealthy", "what acts may be elsewhere, whatever else is beside them"
    gone = [view for view in services() if view.role != "broker"]
    ended = ServiceView("broker 0", "broker", silent_s=float("inf"), code=2, note="a setting is wrong")
    assert named([*gone, ended]) == ("unhealthy", {"broker"})
    assert all(text in format_table([*gone, ended]) for text in ("ended (2)", ended.note))
    stalled = ServiceView("actor 1", "actor", {"role": "actor", "state": "ready", **PAGES["actor"], **STALLED})
    assert named([*services(), stalled]) == ("unhealthy", {"actor", "actor 1"}), "the run goes on"
    assert exit_code([], judge([])) == 2


def on(cores: dict[str, list[str]] | list[str], **changes: Page) -> list[ServiceView]:
    """Services on these cores, each in its own container; those of a dict stay on some of them."""
    bound = cores if isinstance(cores, dict) else dict.fromkeys(PAGES, cores)
    return services(**{role: {"cores": bound[role], **changes.get(role, {})} for role in PAGES})


@pytest.mark.parametrize(
    ("seen", "most"),
    [
        (
            on(TWO, learner={"cpu_share": 0.84}, broker={"cpu_share": 0.46}, envserver={"cpu_share": 0.56}),
            {"learner 0"},
        ),
        (on(BOUND, learner={"cpu_share": 0.9}, broker={"cpu_share": 0.95}), {"broker 0"}),
        (on(BOUND, learner={"cpu_share": 0.59}, broker={"cpu_share": 0.4}), set()),
        (services(learner={"cpu_share": 1.9}), set()),
        (on(TWO, learner={"cpu_share": 0.2}, **{role: {"cpu_pressure": 0.97} for role in ROLES[1:]}), {"learner 0"}),
    ],
    ids=["full", "bound", "room", "other machines have room", "other programs"],
)
def test_a_full_machine_comes_before_any_service_of_it(seen: list[ServiceView], most: set[str]) -> None:
    kind, names = named(seen)
    assert (kind, names - {*ROLES}) == ("CPU-bound" if most else "latency-bound", most)


def test_nothing_is_added_to_a_machine_without_a_core_for_it() -> None:
    busy = {"envserver": {"busy_fraction": 0.93, "cpu_share": 0.9}, "learner": {"cpu_share": 0.6}}
    scarce, enough = judge(on(TWO, **busy)), judge(on([*TWO, "a 2"], **busy))
    assert scarce.kind == enough.kind == "environment-bound"
    assert ["add cores" in each.sentence for each in (scarce, enough)] == [True, False]


def test_programs_that_step_themselves_need_no_actors() -> None:
    alone, waiting, served = (
        [view for view in services(learner={"peers": peers}) if view.role in ("learner", "broker")[:roles]]
        for peers, roles in ((0, 1), (0, 2), (1, 2))
    )
    assert judge(served).kind == "latency-bound"
    assert named(waiting) == ("unhealthy", {"actor"})
    assert named([*alone, ServiceView("broker 0", "broker")]) == ("starting", {"broker", "broker 0"})
    assert named(alone) == ("unhealthy", {"broker", "envserver", "actor"})


def test_a_learner_that_has_ended_is_finished_if_all_is_done_and_trained_while_policies_wait() -> None:
    others = [ServiceView(role, role, {"state": "ready", "stalled": True}) for role in ROLES[1:]]
    ended = ServiceView("learner 0", "learner", code=0, finished=True)
    stopped = ServiceView("learner 0", "learner", code=0, note="12:00:00.000 learner I saved at agent step 100")
    kept = ServiceView("learner 0", "learner", {"state": "ready", "finished": True, "evaluations_waiting": 3})
    evaluator = ServiceView("evaluator 0", "evaluator", {"state": "ready", "evaluations_waiting": 2})
    for seen, kind in (
        ([ended], "finished"),
        ([ended, *others], "finished"),
        ([ended, *others, evaluator], "finished"),
        ([kept, *others], "finished"),
        ([stopped, *others], "unhealthy"),
    ):
        verdict = judge(seen)
        assert (verdict.kind, exit_code(seen, verdict)) == (kind, int(kind == "unhealthy"))


def test_a_learner_whose_actors_are_on_machines_that_cannot_be_asked_trains() -> None:
    away = ServiceView(ELSEWHERE_ROLE, ELSEWHERE_ROLE, silent_s=float("inf"), note="on node8")

    def alone(**page: Any) -> Verdict:
        seen = services(learner=page)[:1]
        assert judge([*seen, away]) == judge(seen), "beast train sees no page of its hosts either"
        return judge(seen)

    assert (alone().kind, alone().good) == ("latency-bound", True)
    assert alone(waiting_fraction=0.0).kind == "training-bound"
    assert not alone(peers=0).good
    hidden = ServiceView("learner 0", "learner", silent_s=float("inf"), note="20/30 agent steps")
    unknown = judge([hidden, away])
    assert (unknown.kind, unknown.good, hidden.note in unknown.sentence) == ("unhealthy", False, True)
    assert judge([hidden]).kind == "unhealthy"


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
def test_any_pages_give_a_table_and_a_sentence(changes: list[tuple[str, tuple[str, Any]]], without: set[str]) -> None:
    views = services(learner=STALLED)
    for role, (key, value) in changes:
        next(view for view in views if view.role == role).page[key] = value
    views = [view for view in views if view.role not in without]
    verdict = judge(views)
    assert verdict.kind in KINDS, verdict.sentence
    for as_json_text in (False, True):
        assert render(views, verdict, as_json_text=as_json_text)
