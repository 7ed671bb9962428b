"""The numbers of a health page as Prometheus metrics: the only catalogue of them and their meanings.

A page's key `batch_rows_mean` becomes `zerobeast_batch_rows_mean{role="broker",run="pong"}`. Counters get `_total`, and
time units are spelt out in seconds, as Prometheus names require. The histograms of `common.health.hops` are one metric,
zerobeast_hop_seconds. Entries that are not in the catalogue, such as texts and histories, are not exported.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from zerobeast.common.health.hops import EDGES_S

PREFIX = "zerobeast_"
HOP_METRIC = f"{PREFIX}hop_seconds"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metric(NamedTuple):
    """One entry of the catalogue."""

    kind: Literal["gauge", "counter"]
    meaning: str
    label: str = ""  #: the page holds a map from values of this label to numbers


_gauge, _counter = partial(Metric, "gauge"), partial(Metric, "counter")


METRICS: dict[str, Metric] = {
    # every service
    "live": _gauge("1 while the event loop runs"),
    "ready": _gauge("1 while the service accepts work"),
    "uptime_s": _gauge("seconds since the service started"),
    "loop_age_s": _gauge("seconds since the event loop last completed a turn or reported progress within one"),
    "computing_s": _gauge("seconds that the current update or write has taken; 0 during the first second"),
    "progress_age_s": _gauge("seconds since the service last made progress"),
    "stalled": _gauge("1 after health.stall_after_s with work but no progress"),
    "stalled_s": _gauge("seconds with work but no progress"),
    "memory_bytes": _gauge("resident memory of the process and its children, environment processes included"),
    "cpu_s": _counter("CPU seconds used by the process"),
    "cpu_share": _gauge("cores in use by the process"),
    "cpus": _gauge("cores available to the process"),
    "cpu_pressure": _gauge("share of the last 10 s in which processes of the machine or container waited for a core"),
    "open_files": _gauge("open file descriptors of the process, connections included"),
    "max_files": _gauge("limit on open file descriptors"),
    # several
    "agent_steps": _counter("agent steps: stepped by an env-server, driven by an actor, or used by a learner"),
    "agent_steps_per_s": _gauge("agent steps per second"),
    "busy_fraction": _gauge("share of time spent working"),
    "envs": _gauge("environments hosted or driven"),
    "episodes": _counter("episodes that ended"),
    "episodes_begun": _counter("episodes that started: ended, lost or in progress"),
    "episodes_lost": _counter("episodes lost because their environment or its process failed"),
    "policy_version": _gauge("newest version of the weights"),
    "refused": _counter("messages and connections refused"),
    "refused_by_reason": _counter("messages and connections refused, by reason", "reason"),
    "dropped": _counter("replies dropped because the client did not read them"),
    # actor
    "groups": _gauge("env groups"),
    "rollouts_sent": _counter("rollout messages sent"),
    "unacked": _gauge("rollout messages not yet acknowledged"),
    "rollouts": _counter("rollouts completed"),
    "rollouts_cut": _counter("rollouts in progress that were lost to the restart of a peer"),
    "rollouts_cut_by_peer": _counter("rollouts in progress that were lost to the restart of a peer, by peer", "peer"),
    "policy_version_drops": _counter("answers inferred with older weights than the answer before"),
    "episodes_dropped": _counter("episodes missing from the statistics because too many waited for a rollout"),
    "reconnects": _counter("reconnections"),
    "moves": _counter("times that an env group moved to another server"),
    "setbacks": _counter("times that a server was left alone for a while after repeated restarts or invalid answers"),
    "waiting_connect_fraction": _gauge("share of the env groups' time spent waiting for sessions"),
    "waiting_env_fraction": _gauge("share of the env groups' time spent waiting for env-servers"),
    "waiting_broker_fraction": _gauge("share of the env groups' time spent waiting for brokers"),
    "waiting_credit_fraction": _gauge("share of the env groups' time spent waiting for credit from the learner"),
    # broker
    "rows": _counter("rows inferred, one per environment and step"),
    "rows_per_s": _gauge("rows inferred per second"),
    "requests_per_s": _gauge("requests answered per second"),
    "batch_rows_mean": _gauge("mean number of rows in a forward pass"),
    "max_batch_rows": _gauge("maximum number of rows in a forward pass"),
    "clients": _gauge("env groups with a session"),
    "syncs": _counter("versions of the weights received and used"),
    "sync_bytes": _counter("bytes of weights received and used"),
    "sync_bytes_saved": _counter("bytes of the versions skipped by sync.rule"),
    "versions_behind": _gauge("published versions by which the acting weights are behind"),
    "divergence": _gauge("divergence of the newest policy from the acting one, as measured by the learner"),
    # env-server
    "sessions": _gauge("sessions, each with one vector environment"),
    "sessions_making": _gauge("sessions whose environments are still being created"),
    "env_errors": _counter("failures of environments: exceptions and dead processes"),
    "env_timeouts": _counter("environment processes killed because they hung"),
    "env_recycled": _counter("environment processes replaced at a limit of envserver.max_..."),
    "infos_left_out": _counter("step infos that could not be encoded for the clients that requested them"),
    # learner
    "env_frames": _counter("env frames: simulator frames behind the agent steps"),
    "total_steps": _gauge("agent steps at which the run ends"),
    "finished": _gauge("1 once the run has ended and is saved"),
    "updates": _counter("updates of the algorithm in which something was learned; on-policy: one per batch"),
    "optimizer_steps": _counter("optimiser steps"),
    "nonfinite_updates": _counter("updates in which nothing was learned, because of a non-finite loss or gradient"),
    "mean_return_100": _gauge("mean return of the last 100 episodes"),
    "mean_return_100_by_task": _gauge("mean return of the last 100 episodes, by environment", "task"),
    "mean_length_100": _gauge("mean length of the last 100 episodes, in agent steps"),
    "policy_lag_mean": _gauge("mean policy_lag: versions between the acting and the learning policy"),
    "policy_lag_max": _gauge("maximum policy_lag: versions between the acting and the learning policy"),
    "stale_fraction": _gauge("share of rollouts dropped for exceeding learner.max_policy_lag"),
    "waiting_fraction": _gauge("share of time spent waiting for rollouts"),
    "samples_per_insert": _gauge("transitions sampled per agent step inserted into the replay"),
    "replay_fill": _gauge("progress to the number of inserts needed before the first update, 0 to 1"),
    "replay_starved_s": _counter("seconds that updates waited for inserts, to stay within samples_per_insert"),
    "ratio_limited_s": _counter("seconds that rollouts waited for updates to catch up with samples_per_insert"),
    "replay_starved_fraction": _gauge("share of time that updates wait for inserts, to stay within samples_per_insert"),
    "ratio_limited_fraction": _gauge(
        "share of time that rollouts wait for updates to catch up with samples_per_insert"
    ),
    "update_ms": _gauge("duration of an update"),
    "learning_rate": _gauge("current learning rate"),
    "loss": _gauge("latest loss"),
    "entropy": _gauge("mean policy entropy in the last updates"),
    "grad_norm": _gauge("latest gradient norm, before clipping"),
    "syncs_by_acting": _counter("versions of the weights that each broker has acted with", "acting"),
    "lag_by_acting": _gauge("published versions by which each broker is behind", "acting"),
    "divergence_by_acting": _gauge("divergence of the newest policy from that of each broker", "acting"),
    "acting": _gauge("brokers that inferred actions of the rollouts of the last minute"),
    "rollouts_by_fate": _counter("rollouts received, by fate", "fate"),
    "queue_rows": _gauge("rollouts in the queue"),
    "queue_capacity": _gauge("rollouts that may be begun and not learned from"),
    "streams_held": _gauge("streams that may not use their whole window, since their rollouts would be too old"),
    "peers": _gauge("actors with a session"),
    "checkpoint_age_s": _gauge("seconds since the last checkpoint written by this process"),
    "drifts": _counter(
        "checkpoints at which a rank's weights had drifted and were replaced by those of the first rank"
    ),
    "write_errors": _counter("failed writes of checkpoints and metrics rows"),
    # evaluator
    "evaluations": _counter("policies evaluated"),
    "evaluations_waiting": _gauge("checkpoints waiting for evaluation"),
    "evaluations_failed": _counter("evaluations that failed and were retried"),
    "evaluated_return": _gauge("mean return of the latest evaluation"),
    "best_return": _gauge("mean return of the best evaluation"),
}


def metric_name(key: str) -> tuple[str, float]:
    """The metric's name for a key of a page, and the factor from the page's value to the metric's."""
    total = "_total" if METRICS[key].kind == "counter" else ""
    for unit, written, factor in (("_per_s", "_per_second", 1.0), ("_ms", "_seconds", 1e-3), ("_s", "_seconds", 1.0)):
        if key.endswith(unit):
            return PREFIX + key.removesuffix(unit) + written + total, factor
    return PREFIX + key + total, 1.0


class _Collector(NamedTuple):
    """Gives prometheus_client the numbers of one page."""

    page: Mapping[str, Any]

    def collect(self) -> Iterator[Any]:
        """One metric family for every number."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = {"role": str(self.page.get("role", "unknown")), "run": str(self.page.get("run", ""))}
        yield from _hop_family(labels, self.page.get("hops"))
        for key, metric in METRICS.items():
            name, factor = metric_name(key)
            make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = make(name, metric.meaning, labels=[*labels, *filter(None, [metric.label])])
            value = self.page.get(key)
            by_label = value if metric.label else {"": value}
            for label, number in by_label.items() if isinstance(by_label, dict) else ():
                if isinstance(number, int | float) and math.isfinite(number):
                    names = [str(label)] if metric.label else []
                    family.add_metric([*labels.values(), *names], number * factor)
            if family.samples:
                yield family


def render(page: Mapping[str, Any]) -> bytes:
    """A page, as `zerobeast.common.service.health_server.HealthServer.page` returns it, in Prometheus' text format."""
    from prometheus_client import generate_latest

    return generate_latest(_Collector(page))


def _hop_family(labels: Mapping[str, str], pages: Any) -> Iterator[Any]:
    """One histogram for all hops of a service, cumulative, as in Prometheus."""
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(HOP_METRIC, "duration of each hop in seconds", labels=[*labels, "hop"])
    for hop, page in pages.items() if isinstance(pages, dict) else ():
        edges = [*map(str, EDGES_S), "+Inf"]
        buckets = list(zip(edges, accumulate(page["buckets"]), strict=True))
        family.add_metric([*labels.values(), hop], buckets, page["sum_s"])
    if family.samples:
        yield family
