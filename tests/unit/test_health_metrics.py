"""Numbers of a page as Prometheus metrics, and a dashboard that asks for nothing else."""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from zerobeast.common.health.metrics import HOP_METRIC, METRICS, PREFIX, exported, render

ROOT = Path(__file__).parents[2]


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


EXPORTED = {exported(key)[0] for key in METRICS} | {f"{HOP_METRIC}_bucket"}


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
