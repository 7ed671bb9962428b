"""Numbers of a page as Prometheus metrics, and a dashboard that asks for nothing else."""

import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from zerobeast.common.health.metrics import HOP_METRIC, METRICS, PREFIX, exported, render

ROOT = Path(__file__).parents[2]


def samples(page: dict[str, object]) -> dict[str, float]:
    families = text_string_to_metric_families(render(page).decode())
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in families
        for sample in family.samples
    }


def test_gauges_counters_and_reasons_become_metrics_of_the_role() -> None:
    page = {
        "role": "broker",
        "run": "pong",
        "ready": True,
        "rows": 7,
        "mean_return_100_by_task": {"A-v0": -2.5, "B-v0": None},
        "batch_rows_mean": 3.5,
        "refused_by_reason": {"kind": 2, "payload": 1},
    }
    assert samples(page) == {
        "zerobeast_ready[('role', 'broker'), ('run', 'pong')]": 1,
        "zerobeast_rows_total[('role', 'broker'), ('run', 'pong')]": 7,
        "zerobeast_mean_return_100_by_task[('role', 'broker'), ('run', 'pong'), ('task', 'A-v0')]": -2.5,
        "zerobeast_batch_rows_mean[('role', 'broker'), ('run', 'pong')]": 3.5,
        "zerobeast_refused_by_reason_total[('reason', 'kind'), ('role', 'broker'), ('run', 'pong')]": 2,
        "zerobeast_refused_by_reason_total[('reason', 'payload'), ('role', 'broker'), ('run', 'pong')]": 1,
    }


@pytest.mark.parametrize(
    ("key", "name", "value"),
    [
        ("uptime_s", "zerobeast_uptime_seconds", 2.0),
        ("update_ms", "zerobeast_update_seconds", 0.002),
        ("rows_per_s", "zerobeast_rows_per_second", 2.0),
        ("cpu_s", "zerobeast_cpu_seconds_total", 2.0),
    ],
)
def test_units_are_seconds_and_written_out(key: str, name: str, value: float) -> None:
    assert samples({"role": "learner", key: 2.0}) == {f"{name}[('role', 'learner'), ('run', '')]": value}


@pytest.mark.parametrize(
    "page",
    [
        *({"loss": value} for value in (None, "text", math.nan, math.inf, [1, 2], {"a": 1})),
        {"unheard_of": 1},
        {"refused_by_reason": {"kind": "many"}},
        {"refused_by_reason": 3},
    ],
)
def test_values_that_are_no_numbers_are_no_metrics(page: dict[str, object]) -> None:
    assert samples({"role": "learner", **page}) == {}


def asked(expressions: Iterable[str]) -> set[str]:
    return {name for expression in expressions for name in re.findall(rf"{PREFIX}\w+", expression)}


EXPORTED = {exported(key)[0] for key in METRICS} | {f"{HOP_METRIC}_bucket"}


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    dashboard = json.loads((ROOT / "deploy/monitoring/grafana/dashboards/zerobeast.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(asked(expressions)) > 20
    assert asked(expressions) <= EXPORTED
    assert [variable["name"] for variable in dashboard["templating"]["list"]] == ["namespace", "run"]
    chosen = '{namespace=~"$namespace",run=~"$run"'
    assert all(text.count(chosen) == len(re.findall(rf"{PREFIX}\w+", text)) for text in expressions)


def test_alerts_ask_for_metrics_that_exist_and_prometheus_finds_their_file() -> None:
    (group,) = yaml.safe_load((ROOT / "deploy/monitoring/alerts.yml").read_text())["groups"]
    for rule in group["rules"]:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert asked([rule["expr"]])
        assert asked([rule["expr"], rule["annotations"]["summary"]]) <= EXPORTED
    alarming = {"stalled", "progress_age_seconds", "checkpoint_age_seconds", "write_errors_total"}
    assert {f"{PREFIX}{name}" for name in alarming} <= asked(rule["expr"] for rule in group["rules"])
    files = yaml.safe_load((ROOT / "deploy/monitoring/prometheus.yml").read_text())["rule_files"]
    volumes = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["prometheus"]["volumes"]
    assert [f"./deploy/monitoring/{file}:/etc/prometheus/{file}:ro" for file in files] == volumes[1:-1]


SERIES = """
rule_files: [{rules}]
tests:
  - interval: 1m
    input_series:
      - series: 'zerobeast_live{{role="learner", run="gone"}}'
        values: '1x10 _x100'
      - series: 'zerobeast_finished{{role="learner", run="gone"}}'
        values: '0x10 _x100'
      - series: 'zerobeast_live{{role="learner", run="over"}}'
        values: '1x10 _x100'
      - series: 'zerobeast_finished{{role="learner", run="over"}}'
        values: '0x8 1 1 _x100'
      - series: 'zerobeast_live{{role="learner", run="again"}}'
        values: '1x10 _x100'
      - series: 'zerobeast_finished{{role="learner", run="again", instance="before"}}'
        values: '1x5 stale'
      - series: 'zerobeast_finished{{role="learner", run="again", instance="after"}}'
        values: '_x6 0x4 _x100'
      - series: 'zerobeast_live{{role="learner", run="stays"}}'
        values: '1x110'
    alert_rule_test:
      - {{ eval_time: 9m, alertname: RunDisappeared }}
      - eval_time: 30m
        alertname: RunDisappeared
        exp_alerts:
          - exp_labels: {{ severity: critical, run: again }}
            exp_annotations: {{ summary: "again: none of its services answers any more" }}
          - exp_labels: {{ severity: critical, run: gone }}
            exp_annotations: {{ summary: "gone: none of its services answers any more" }}
      - {{ eval_time: 90m, alertname: RunDisappeared }}
"""


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs Prometheus' promtool")
def test_a_run_that_disappears_before_its_end_raises_an_alert_for_an_hour(tmp_path: Path) -> None:
    (tmp_path / "test.yml").write_text(SERIES.format(rules=ROOT / "deploy/monitoring/alerts.yml"))
    subprocess.run(["promtool", "test", "rules", str(tmp_path / "test.yml")], check=True)
