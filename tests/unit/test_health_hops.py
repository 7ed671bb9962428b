"""Durations of hops, progress and stalls; numbers of a page as metrics, and a dashboard that asks for nothing else."""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.build.pages import Page, page_of, passed
from tests.helpers import ROOT
from zerobeast.common.files import run_files
from zerobeast.common.health.figures import ServiceView
from zerobeast.common.health.hops import EDGES_S, HOPS, RECENT_S, Hops, merge_recent, step_s, wires
from zerobeast.common.health.metrics import HOP_METRIC, METRICS, PREFIX, metric_name, render
from zerobeast.common.health.progress import Progress
from zerobeast.common.health.service_table import hop_table
from zerobeast.common.health.sliding_window import SlidingWindow
from zerobeast.common.process.roles import ROLES
from zerobeast.launcher import curves
from zerobeast.launcher.pages import Snapshot


def pages(**seconds: list[float]) -> list[Page]:
    """A page for each hop, as if each came from another process."""
    return [page_of(**{name: times}) for name, times in seconds.items()]


@given(st.lists(st.floats(1e-5, 50.0), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(seconds: list[float], share: float) -> None:
    ordered = sorted(seconds)
    true = ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]
    found, mean_s = passed(*seconds).quantile_s(share), passed(*seconds).mean_s
    assert mean_s == pytest.approx(sum(seconds) / len(seconds))
    edges = (0.0, *EDGES_S)
    place = next(i for i in range(1, len(edges)) if true <= edges[i])
    assert edges[place - 1] - 1e-12 <= found <= edges[place] + 1e-12


def test_recent_drops_what_is_older_than_its_window_and_buckets_do_not() -> None:
    hops = Hops("learner", 0.0)
    hops.add("update", 0.1)
    assert [sum(hops.page(float(tick))["update"]["recent"]) for tick in range(1, 5)] == [1] * 4
    hops.add("update", 0.2)
    page = hops.page(2 * RECENT_S)["update"]
    assert (sum(page["buckets"]), page["sum_s"]) == (2, pytest.approx(0.3))
    later = hops.page(4 * RECENT_S)["update"]
    assert (sum(later["recent"]), sum(later["buckets"])) == (0, 2)


def test_every_service_has_hops_of_its_own_and_those_of_several_processes_add_up() -> None:
    assert set(HOPS) == set(ROLES)
    names = [name for hops in HOPS.values() for name in hops]
    assert len(names) == len(set(names))
    both = [*pages(forward=[0.001, 0.001]), *pages(forward=[0.1]), {"role": "broker"}]
    assert sum(merge_recent(both, "forward").buckets) == 3
    assert merge_recent(both, "forward").sum_s == pytest.approx(0.102)
    assert sum(merge_recent(both, "update").buckets) == 0


@pytest.mark.parametrize(
    "hops",
    [
        "nonsense",
        {"forward": {"recent": [1], "recent_s": 1.0}},
        {"forward": {"recent": ["x"] * (len(EDGES_S) + 1), "recent_s": 1.0}},
        {"forward": {"recent": [1] * (len(EDGES_S) + 1), "recent_s": "long"}},
    ],
)
def test_an_untrusted_page_adds_nothing(hops: object) -> None:
    assert (passed().quantile_s(0.5), merge_recent([{"hops": hops}], "forward").mean_s) == (None, None)
    assert hop_table([ServiceView("broker 0", "broker", {"hops": hops})]) == ""


def test_the_wire_is_what_the_servers_do_not_account_for() -> None:
    of_broker = {"broker_round_trip": [0.035], "batch_wait": [0.0035], "forward": [0.015]}
    seen = pages(env_round_trip=[0.015], env_step=[0.0075], **of_broker)
    assert wires(seen) == pytest.approx({"env-server": 0.0075, "broker": 0.035 - 0.0035 - 0.015})
    assert step_s(seen) == pytest.approx(0.05)
    assert "~16.5 ms" in hop_table([ServiceView("broker 0", "broker", page) for page in seen])
    assert wires(pages(env_round_trip=[0.001], env_step=[0.002]))["env-server"] == 0.0
    assert wires(pages(env_round_trip=[0.015])) == {}
    assert step_s([]) is None


def test_prometheus_gets_cumulative_histograms_of_all_hops() -> None:
    hops, name = Hops("broker", 0.0), "zerobeast_hop_seconds"
    for seconds in (0.001, 0.0011, 80.0):
        hops.add("forward", seconds)
    text = render({"role": "broker", "hops": hops.page(1.0)}).decode()
    family = next(f for f in text_string_to_metric_families(text) if f.name == name)
    found = {(s.name, s.labels.get("le")): s.value for s in family.samples if s.labels["hop"] == "forward"}
    assert [found[f"{name}_bucket", edge] for edge in ("0.001", "0.002", "50.0", "+Inf")] == [1, 2, 2, 3]
    assert found[f"{name}_count", None] == 3
    assert found[f"{name}_sum", None] == pytest.approx(80.0021)


def test_a_rate_is_growth_over_the_window_or_since_it_was_opened() -> None:
    window = SlidingWindow(10.0)
    assert window.per_s(100.0, 7, 0.0) == [0.0, 0.0], "the first call opens it"
    assert window.per_s(102.0, 47, 1.0) == [20.0, 0.5]
    for tick in range(1, 2801):  # asked often, it stays exact
        window.per_s(102.0 + tick / 100, 47 + 0.5 * tick, 1.0)
    span_s, (grown, _) = window.growth(130.0, 47 + 50 * 28, 1.0)
    assert (10.0 <= span_s < 11.0, grown) == (True, pytest.approx(50 * span_s))
    assert window.growth(170.0, 1507, 1.0)[0] > 39.0, "what happened while it was not read for long"
    for second in range(171, 182):
        window.per_s(float(second), 1507, 1.0)
    assert window.per_s(181.0, 1507, 1.0) == [0.0, 0.0], "nothing happened in the whole window"


def note(
    progress: Progress, now: float, done: int, *, idle: bool = False, awake_since: float = 0.0, **refused: int
) -> None:
    progress.note([done], idle=idle, refused=refused, now=now, awake_since=awake_since)


def test_work_left_undone_stalls_a_service_and_progress_ends_the_stall() -> None:
    progress = Progress(100.0)
    note(progress, 100.0, 5)
    note(progress, 170.0, 5)
    assert progress.page(170.0) == {"progress_age_s": 70.0, "stalled_s": 70.0, "refused_since_progress": {}}
    note(progress, 171.0, 6)
    assert progress.page(172.0) == {"progress_age_s": 1.0, "stalled_s": 1.0, "refused_since_progress": {}}
    note(progress, 3771.0, 6, awake_since=3770.0)
    assert progress.page(3771.0)["stalled_s"] == 1.0, "the machine was stopped"


def test_a_service_with_nothing_to_do_does_not_stall_and_refusals_count_from_the_last_progress_on() -> None:
    progress = Progress(0.0)
    note(progress, 1.0, 1, payload=2)
    note(progress, 2.0, 2, payload=3)
    note(progress, 99.0, 2, idle=True, payload=7, terms=1)
    refused = {"payload": 4, "terms": 1}
    assert progress.page(99.0) == {"progress_age_s": 97.0, "stalled_s": 0.0, "refused_since_progress": refused}
    note(progress, 130.0, 2, payload=7, terms=1)
    assert progress.page(130.0)["stalled_s"] == 31.0
    note(progress, 131.0, 3, payload=7, terms=1)
    assert progress.page(131.0)["refused_since_progress"] == {}


@given(st.lists(st.tuples(st.floats(0.0, 9.0), st.integers(0, 2), st.booleans()), max_size=30))
def test_a_stall_is_no_longer_than_the_time_without_progress(turns: list[tuple[float, int, bool]]) -> None:
    progress, now, done = Progress(0.0), 0.0, 0
    for seconds, more, idle in turns:
        now, done = now + seconds, done + more
        note(progress, now, done, idle=idle)
        page = progress.page(now)
        assert 0.0 <= page["stalled_s"] <= page["progress_age_s"]
        assert not idle or page["stalled_s"] == 0.0


def page(role: str, seconds: float, **more: int) -> ServiceView:
    """A service with every hop passed four times, in `seconds` each time."""
    entry = {"recent": [4] + [0] * len(EDGES_S), "recent_s": 4 * seconds}
    return ServiceView(role, role, {"hops": dict.fromkeys(HOPS[role], entry), **more})


def test_every_hop_is_a_curve_over_agent_steps_and_a_failed_write_costs_its_points_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "PERIOD_S", 0.0)
    writer = curves.Curves(tmp_path)
    others = [page(role, 0.02) for role in HOPS if role != "learner"]
    writer.update(Snapshot((*others, page("learner", 0.04))))  # nothing learned yet
    place = tmp_path / "tensorboard"
    place.write_text("no folder")
    for steps in (100, 200, 300):
        writer.update(Snapshot((*others, page("learner", 0.04, agent_steps=steps), page("actor", 0.04))))
        if place.is_file():
            place.unlink()
    writer.close()
    events = EventAccumulator(str(tmp_path / run_files.TENSORBOARD_SERVICES)).Reload()
    assert sorted(events.Tags()["scalars"]) == sorted(f"hops_ms/{role}.{hop}" for role in HOPS for hop in HOPS[role])
    points = events.Scalars("hops_ms/learner.update")
    assert [(point.step, round(point.value, 3)) for point in points] == [(200, 40.0), (300, 40.0)]
    assert events.Scalars("hops_ms/actor.env_round_trip")[0].value == pytest.approx(30.0), "the mean over both actors"


def samples(page: dict[str, object]) -> dict[str, float]:
    families = text_string_to_metric_families(render(page).decode())
    every = [sample for family in families for sample in family.samples]
    return {f"{sample.name}{sorted(sample.labels.items())}": sample.value for sample in every}


def test_gauges_counters_and_reasons_become_metrics_of_the_role_in_units_that_are_written_out() -> None:
    page = {
        "role": "broker",
        "run": "pong",
        "ready": True,
        "rows": 7,
        "mean_return_100_by_task": {"A-v0": -2.5, "B-v0": None},
        "update_ms": 2.0,
        "rows_per_s": 2.5,
        "cpu_s": 9.0,
        "refused_by_reason": {"kind": 2, "payload": 1},
    }
    assert samples(page) == {
        "zerobeast_ready[('role', 'broker'), ('run', 'pong')]": 1,
        "zerobeast_rows_total[('role', 'broker'), ('run', 'pong')]": 7,
        "zerobeast_mean_return_100_by_task[('role', 'broker'), ('run', 'pong'), ('task', 'A-v0')]": -2.5,
        "zerobeast_update_seconds[('role', 'broker'), ('run', 'pong')]": 0.002,
        "zerobeast_rows_per_second[('role', 'broker'), ('run', 'pong')]": 2.5,
        "zerobeast_cpu_seconds_total[('role', 'broker'), ('run', 'pong')]": 9.0,
        "zerobeast_refused_by_reason_total[('reason', 'kind'), ('role', 'broker'), ('run', 'pong')]": 2,
        "zerobeast_refused_by_reason_total[('reason', 'payload'), ('role', 'broker'), ('run', 'pong')]": 1,
    }


@pytest.mark.parametrize("value", [None, "text", math.nan, math.inf, {"a": 1}])
def test_values_that_are_no_numbers_are_no_metrics(value: object) -> None:
    wrong = {"loss": value, "unheard_of": 1, "refused_by_reason": {"kind": "many"}, "rows_by_kind": 3}
    assert samples({"role": "learner", **wrong}) == {}


def asked(expressions: Iterable[str]) -> set[str]:
    return {name for expression in expressions for name in re.findall(rf"{PREFIX}\w+", expression)}


EXPORTED = {metric_name(key)[0] for key in METRICS} | {f"{HOP_METRIC}_bucket"}


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    dashboard = json.loads((ROOT / "deploy/monitoring/grafana/dashboards/zerobeast.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert set() < asked(expressions) <= EXPORTED
    chosen = '{namespace=~"$namespace",run=~"$run"'
    assert all(text.count(chosen) == len(re.findall(rf"{PREFIX}\w+", text)) for text in expressions)


def test_alerts_ask_for_metrics_that_exist_and_prometheus_finds_their_file() -> None:
    (group,) = yaml.safe_load((ROOT / "deploy/monitoring/alerts.yml").read_text())["groups"]
    assert set() < asked(f"{rule['expr']} {rule['annotations']['summary']}" for rule in group["rules"]) <= EXPORTED
    alarming = {"stalled", "progress_age_seconds", "checkpoint_age_seconds", "write_errors_total"}
    assert {f"{PREFIX}{name}" for name in alarming} <= asked(rule["expr"] for rule in group["rules"])
    files = yaml.safe_load((ROOT / "deploy/monitoring/prometheus.yml").read_text())["rule_files"]
    volumes = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["prometheus"]["volumes"]
    assert [f"./deploy/monitoring/{file}:/etc/prometheus/{file}:ro" for file in files] == volumes[1:-1]
