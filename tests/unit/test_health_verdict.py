"""Which service limits the throughput: pages in, one sentence out. And the table around it."""

from typing import Any

import pytest

from zerobeast.common.health.command import exit_code
from zerobeast.common.health.figures import ServiceView
from zerobeast.common.health.hops import Histogram
from zerobeast.common.health.table import as_json, table
from zerobeast.common.health.verdict import ELSEWHERE, Verdict, judge
from zerobeast.common.process.roles import ROLES

PAGES: dict[str, dict[str, Any]] = {
    "learner": {
        "agent_steps": 1000,
        "agent_steps_per_s": 900.0,
        "total_steps": 10_000,
        "waiting_fraction": 0.4,
        "progress_age_s": 0.2,
        "queue_rows": 3,
        "queue_capacity": 32,
        "update_ms": 120.0,
        "policy_version": 50,
        "policy_lag_mean": 1.5,
        "peers": 2,
    },
    "broker": {
        "busy_fraction": 0.4,
        "batch_rows_mean": 9.2,
        "max_batch_rows": 64,
        "rows_per_s": 910.0,
        "policy_version": 50,
        "clients": 2,
    },
    "envserver": {"busy_fraction": 0.5, "envs": 32, "sessions": 2, "agent_steps_per_s": 905.0},
    "actor": {
        "busy_fraction": 0.1,
        "envs": 32,
        "groups": 2,
        "agent_steps_per_s": 900.0,
        "waiting_env_fraction": 0.4,
        "waiting_broker_fraction": 0.5,
        "waiting_credit_fraction": 0.0,
        "waiting_connect_fraction": 0.0,
    },
}


def hops(**seconds: float) -> dict[str, Any]:
    """A page's hops, each passed once in the last seconds."""
    found = {}
    for name, value in seconds.items():
        histogram = Histogram()
        histogram.add(value)
        found[name] = {"recent": histogram.buckets, "recent_s": value}
    return found


def verdict(services: list[ServiceView]) -> str:
    return judge(services).sentence


def services(**changes: dict[str, Any]) -> list[ServiceView]:
    """A healthy run except for `changes`; every service is on its own machine."""
    return [
        ServiceView(
            f"{role} 0",
            role,
            {"role": role, "state": "ready", "cores": [f"{role} 0", f"{role} 1"]} | page | changes.get(role, {}),
        )
        for role, page in PAGES.items()
    ]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "latency-bound: no service is busy (learner waits 40%, brokers busy 40%, env-servers busy 50%)"),
        ({"learner": {"waiting_fraction": 0.02}}, "training-bound: the learner never waits (queue 3 of 32, 120.0 ms"),
        (
            {"learner": {"waiting_fraction": 0.02, "stale_fraction": 0.5}},
            "lag-bound: 50% of the rollouts are older than",
        ),
        ({"learner": {"waiting_fraction": 0.02, "stale_fraction": 0.1}}, "training-bound: the learner never waits"),
        (
            {"learner": {"waiting_fraction": 0.9, "replay_starved_fraction": 0.8, "samples_per_insert": 0.04}},
            "replay-starved: learning waits 80% for rollouts (0.04 samples per insert): add actors, or",
        ),
        (
            {"learner": {"waiting_fraction": 0.0, "ratio_limited_fraction": 0.9, "samples_per_insert": 8.0}},
            "ratio-limited: rollouts wait 90% for updates (8 samples per insert, 120.0 ms an update): a GPU or",
        ),
        (
            {"broker": {"busy_fraction": 0.97}},
            "inference-bound: batches 9 of 64 full, broker busy 97%: add a broker or a GPU",
        ),
        ({"envserver": {"busy_fraction": 0.93}}, "environment-bound: env-servers busy 93%: add env-servers"),
        ({"actor": {"busy_fraction": 0.99}}, "actor-bound: actors busy 99%: add actors"),
        (
            {"learner": {"waiting_fraction": 0.0}, "broker": {"busy_fraction": 1.0}},
            "training-bound: the learner never waits",
        ),
        (
            {"actor": {"hops": hops(env_round_trip=0.015, broker_round_trip=0.035)}}
            | {"envserver": {"hops": hops(env_step=0.0075)}, "broker": {"hops": hops(batch_wait=0.0, forward=0.0075)}},
            "network-bound: 27.5 ms of the 50.0 ms of a step are the way to the broker and back",
        ),
        (
            {"actor": {"hops": hops(env_round_trip=0.015, broker_round_trip=0.015)}}
            | {"envserver": {"hops": hops(env_step=0.0075)}, "broker": {"hops": hops(batch_wait=0.0, forward=0.0075)}},
            "latency-bound: no service is busy",
        ),
        ({"learner": {"agent_steps_per_s": 0.0}}, "starting: no update yet"),
        ({"learner": {"waiting_fraction": None}}, "starting: no update yet"),
        (
            {"learner": {"agent_steps_per_s": 0.0}, "envserver": {"sessions_making": 2}},
            "starting: environments of 2 sessions are being made",
        ),
        (
            {"learner": {"agent_steps_per_s": 0.0, "replay_fill": 0.25}},
            "filling: the replay has 25% of the steps that it needs before the first update",
        ),
        ({"learner": {"progress_age_s": 99.0, "agent_steps": 10_000}}, "finished: the run has reached its last step"),
        ({"broker": {"state": "draining"}}, "not well: broker 0 is draining"),
        ({"actor": {"loop_age_s": 40.0}}, "not well: actor 0 is stuck"),
    ],
)
def test_the_verdict_names_what_limits_the_run(changes: dict[str, Any], sentence: str) -> None:
    assert verdict(services(**changes)).startswith(sentence)


def test_a_run_that_has_just_been_started_is_starting_and_not_broken() -> None:
    fresh = [ServiceView(f"{role} 0", role) for role in PAGES]
    assert verdict(fresh) == "starting: learner 0, broker 0, envserver 0, actor 0"
    assert verdict([*services()[:3], ServiceView("actor 0", "actor")]) == "starting: actor 0"
    assert verdict(services(learner={"state": "starting"})) == "starting: learner 0"
    assert verdict(fresh[1:]).startswith("not training: no learner")
    dead = [ServiceView("learner 0", "learner", code=2), *fresh[1:]]
    assert verdict(dead).startswith("not training: no learner")


def test_a_full_machine_is_named_before_any_service_of_it() -> None:
    shares = {"learner": 0.84, "broker": 0.46, "envserver": 0.56, "actor": 0.06}
    full = services(**{role: {"cores": ["a 0", "a 1"], "cpu_share": share} for role, share in shares.items()})
    assert verdict(full) == "CPU-bound: the 2 cores are full, most with learner 0 (84%): add cores or a GPU"


def on(cores: dict[str, list[str]] | list[str], **changes: dict[str, Any]) -> list[ServiceView]:
    """Services on these cores, each in its own container; those of a dict stay on some of them."""
    bound = cores if isinstance(cores, dict) else dict.fromkeys(PAGES, cores)
    return services(**{role: {"cores": bound[role], **changes.get(role, {})} for role in PAGES})


TWO = ["a 0", "a 1"]


def test_a_worker_that_stays_on_a_core_does_not_make_the_machine_smaller() -> None:
    bound = {"learner": TWO, "broker": ["a 0"], "envserver": ["a 0"], "actor": ["a 1"]}
    assert verdict(on(bound, learner={"cpu_share": 0.59}, broker={"cpu_share": 0.4})).startswith("latency-bound")
    full = on(bound, learner={"cpu_share": 0.9}, broker={"cpu_share": 0.95})
    assert verdict(full) == "CPU-bound: the 2 cores are full, most with broker 0 (95%): add cores or a GPU"
    alone = on(["a 3"], learner={"cpu_share": 0.95})
    assert verdict(alone) == "CPU-bound: the only core is full, most with learner 0 (95%): add cores or a GPU"
    nodes = on({role: [f"{role} 0", f"{role} 1"] for role in PAGES}, learner={"cpu_share": 1.9})
    assert verdict(nodes).startswith("latency-bound"), "three more machines have room"


def test_cores_that_other_programs_fill_are_full_and_no_service_is_asked_for() -> None:
    busy = {"envserver": {"busy_fraction": 0.93, "cpu_share": 0.03}, "learner": {"cpu_share": 0.2}}
    for role in PAGES:
        busy.setdefault(role, {})["cpu_pressure"] = 0.97
    full = "the 2 cores are full (this run uses 0.2, and processes wait 97% of the time)"
    assert verdict(on(TWO, **busy)).startswith(f"CPU-bound: {full}, most with learner 0 (20%): ")
    busy["learner"]["stale_fraction"] = 0.5
    assert f"dropped, and {full}: take fewer actors or environments" in verdict(on(TWO, **busy))


def test_nothing_is_added_to_a_machine_without_a_core_for_it() -> None:
    busy = {"envserver": {"busy_fraction": 0.93, "cpu_share": 0.9}, "learner": {"cpu_share": 0.6}}
    found = "environment-bound: env-servers busy 93%: "
    scarce = "add cores or a GPU: no core is left for another envserver"
    assert verdict(on(TWO, **busy)) == f"{found}{scarce}"
    assert verdict(on([*TWO, "a 2"], **busy)).startswith(f"{found}add env-servers")


def test_services_that_are_missing_are_all_named() -> None:
    assert verdict([]) == "not training: no learner and no broker and no envserver and no actor answers"
    gone = [view for view in services() if view.role != "broker"]
    gone.append(ServiceView("broker 0", "broker", silent_s=float("inf"), code=2, note="a setting is wrong"))
    assert verdict(gone) == "not training: no broker answers"
    assert "ended (2)" in table(gone)
    assert "a setting is wrong" in table(gone)


def test_programs_that_step_themselves_need_no_actors() -> None:
    def serving(peers: int) -> list[ServiceView]:
        return [view for view in services(learner={"peers": peers}) if view.role in ("learner", "broker")]

    assert verdict(serving(0)) == "not training: no actor and nothing like one is connected"
    idle = "learner waits 40%, brokers busy 40%"
    assert verdict(serving(1)) == f"latency-bound: no service is busy ({idle}): add agents"
    learner = next(view for view in serving(0) if view.role == "learner")
    assert verdict([learner, ServiceView("broker 0", "broker")]) == "starting: broker 0"
    assert verdict([learner]) == "not training: no broker and no envserver and no actor answers"


def test_a_learner_whose_last_words_are_that_all_is_done_has_finished() -> None:
    ended = ServiceView("learner 0", "learner", code=0, note="12:00:00.000 learner I all 300 agent steps are done")
    others = [ServiceView(role, role, {"state": "ready", "stalled": True}) for role in ROLES[1:]]
    for seen in ([ended], [ended, *others]):
        assert judge(seen) == Verdict("finished: the run has reached its last step", good=True)
        assert exit_code(seen, judge(seen)) == 0
    evaluator = ServiceView("evaluator 0", "evaluator", {"state": "ready", "evaluations_waiting": 2})
    assert verdict([ended, *others, evaluator]) == "trained: 2 policies wait for their evaluation"
    kept = ServiceView("learner 0", "learner", {"state": "ready", "finished": True, "evaluations_waiting": 3})
    assert verdict([kept, *others]) == "trained: 3 policies wait for their evaluation", "whose evaluator is down"
    stopped = ServiceView("learner 0", "learner", code=0, note="12:00:00.000 learner I saved at agent step 100")
    assert exit_code([stopped, *others], judge([stopped, *others])) == 1


def test_the_table_has_a_line_for_each_service_with_what_a_person_needs() -> None:
    seen = services(
        learner={"uptime_s": 3725.0, "memory_bytes": 512 << 20, "refused": 3, "dropped": 1},
        broker={"progress_age_s": 75.0},
    )
    header, learner, broker, envserver, actor = table(seen).splitlines()
    assert header.split()[:3] == ["service", "state", "uptime"]
    for text in ("1:02:05", "900 steps/s", "now", "queue 3/32", "v50 lag 1.5", "512 MB", "3 refused, 1 dropped"):
        assert text in learner
    assert "batch 9.2/64" in broker
    assert "0:01:15 ago" in broker
    assert "32 envs" in envserver
    assert "actions 50%" in actor


def test_json_has_every_page_and_marks_what_is_healthy() -> None:
    found = as_json(services(broker={"state": "starting"}), Verdict("a sentence", good=False))
    assert found["verdict"] == "a sentence"
    assert not found["healthy"]
    assert [entry["healthy"] for entry in found["services"]] == [True, False, True, True]
    assert found["services"][0]["page"]["queue_rows"] == 3
    assert not as_json([], Verdict("", good=True))["healthy"]


def test_a_run_that_cannot_be_saved_is_reported_even_if_it_trains_well() -> None:
    full = {"unsaved": "runs/x: metrics are lost: No space left on device", "write_errors": 3}
    seen = services(learner=full)
    assert verdict(seen) == "not saved: runs/x: metrics are lost: No space left on device"
    assert "3 failed writes" in table(seen)
    assert verdict(services(learner={**full, "stalled": True})).startswith("not saved")
    for more in ({}, {"agent_steps": 10_000}):
        assert exit_code(seen, judge(services(learner={**full, **more}))) == 1
    assert not verdict(services(learner={"unsaved": ""})).startswith("not saved")


def test_a_learner_whose_actors_are_on_machines_that_cannot_be_asked_trains() -> None:
    away = ServiceView(ELSEWHERE, ELSEWHERE, silent_s=float("inf"), note="on node8")

    def alone(**page: Any) -> Verdict:
        seen = [view for view in services(learner=page) if view.role == "learner"]
        assert judge([*seen, away]) == judge(seen), "beast train sees no page of its hosts either"
        return judge(seen)

    sentence = "training: the learner waits 40% for services whose pages cannot be asked from here"
    assert alone() == Verdict(sentence, good=True)
    assert alone(waiting_fraction=0.0).sentence.startswith("training-bound")
    assert alone(replay_starved_fraction=0.9).sentence.startswith("replay-starved")
    assert not alone(peers=0).good
    hidden = ServiceView("learner 0", "learner", silent_s=float("inf"), note="12:00:00.000 learner I 20/30 agent steps")
    assert judge([hidden, away]) == Verdict(
        f"unknown: the learner's page cannot be asked from here; its log ends with: {hidden.note}", good=False
    )
    assert judge([hidden]).sentence.startswith("not training: no learner")
