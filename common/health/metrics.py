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
    "live": _gauge("1 while the loop turns"),
    "ready": _gauge("1 while the service takes work"),
    "uptime_s": _gauge("seconds since the start"),
    "loop_age_s": _gauge("seconds since the loop last turned, or a long turn made progress"),
    "computing_s": _gauge("seconds that the update or write under way has taken; 0 in the first second"),
    "progress_age_s": _gauge("seconds since the service last got something done"),
    "stalled": _gauge("1 while the service has work and has got none of it done for health.stall_after_s"),
    "stalled_s": _gauge("seconds for which the service has had work and got none of it done"),
    "memory_bytes": _gauge(
        "resident set sizes of the process and of those that it has started, environments among them"
    ),
    "cpu_s": _counter("CPU seconds of the process"),
    "cpu_share": _gauge("cores in use by the process"),
    "cpus": _gauge("cores that the process may use"),
    "cpu_pressure": _gauge("share of the last 10 s in which processes of its machine or container waited for a core"),
    "open_files": _gauge("files, connections among them, that the process has open"),
    "max_files": _gauge("files that the process may have open"),
    # several
    "agent_steps": _counter("steps of environments: hosted, driven or learned from"),
    "agent_steps_per_s": _gauge("the same per second"),
    "busy_fraction": _gauge("share of the time spent working"),
    "envs": _gauge("environments hosted or driven"),
    "episodes": _counter("episodes that ended"),
    "episodes_begun": _counter("episodes that were begun: those that ended, those that are lost, those in progress"),
    "episodes_lost": _counter("episodes that are lost because their environment or its process failed"),
    "policy_version": _gauge("newest version of the weights"),
    "refused": _counter("messages and connections refused"),
    "refused_by_reason": _counter("messages and connections refused", "reason"),
    "dropped": _counter("replies dropped because their client was stuck"),
    # actor
    "groups": _gauge("env groups"),
    "rollouts_sent": _counter("rollout messages pushed"),
    "unacked": _gauge("rollout messages under way"),
    "rollouts": _counter("rollouts completed"),
    "rollouts_cut": _counter("rollouts in progress that a peer's restart has cost"),
    "rollouts_cut_by_peer": _counter("rollouts in progress that a peer's restart has cost", "peer"),
    "policy_version_drops": _counter("answers that were chosen by older weights than the one before"),
    "episodes_dropped": _counter("episodes that statistics could not keep up with"),
    "reconnects": _counter("connections made anew"),
    "moves": _counter("env groups that went to another server"),
    "setbacks": _counter("times that a server sent something else than answers, again, and was left alone for a while"),
    "waiting_connect_fraction": _gauge("share of the groups' time spent waiting for sessions"),
    "waiting_env_fraction": _gauge("share of the groups' time spent waiting for env-servers"),
    "waiting_broker_fraction": _gauge("share of the groups' time spent waiting for brokers"),
    "waiting_credit_fraction": _gauge("share of the groups' time spent waiting for the learner"),
    # broker
    "rows": _counter("environments inferred for"),
    "rows_per_s": _gauge("the same per second"),
    "requests_per_s": _gauge("requests answered per second"),
    "batch_rows_mean": _gauge("rows of a mean forward pass"),
    "max_batch_rows": _gauge("rows that a forward pass may have"),
    "clients": _gauge("env groups with a session"),
    "syncs": _counter("versions of the weights taken"),
    "sync_bytes": _counter("bytes of the weights taken"),
    "sync_bytes_saved": _counter("bytes of the versions that sync.rule has passed over"),
    "versions_behind": _gauge("versions between the weights that act and the newest published"),
    "divergence": _gauge("how far the newest policy is from the one that acts, as the learner measured it"),
    # env-server
    "sessions": _gauge("vector environments hosted"),
    "sessions_making": _gauge("those of them that are still to be made"),
    "env_errors": _counter("environments that raised or died"),
    "env_timeouts": _counter("processes of environments that were killed because they hung"),
    "env_recycled": _counter("processes of environments that were replaced at a limit of envserver.max_..."),
    "infos_left_out": _counter("infos of steps that cannot travel to the clients that asked for them"),
    # learner
    "env_frames": _counter("frames of the simulator behind the agent steps"),
    "total_steps": _gauge("agent steps at which the run ends"),
    "finished": _gauge("1 once the run has ended and is saved"),
    "updates": _counter("steps of the algorithm in which something was learned; on policy one for each batch"),
    "optimizer_steps": _counter("steps of the optimiser"),
    "nonfinite_updates": _counter("steps in which nothing was learned: loss or gradient was not finite"),
    "mean_return_100": _gauge("mean return of the last 100 episodes"),
    "mean_return_100_by_task": _gauge("mean return of the last 100 episodes in each of several environments", "task"),
    "mean_length_100": _gauge("mean length of the last 100 episodes, in agent steps"),
    "policy_lag_mean": _gauge("versions between the acting and the learning policy, mean"),
    "policy_lag_max": _gauge("versions between the acting and the learning policy, maximum"),
    "stale_fraction": _gauge("share of the rollouts that are dropped because their policy is too old"),
    "waiting_fraction": _gauge("share of the time spent waiting for rollouts"),
    "samples_per_insert": _gauge("samples learned from for each that was inserted into the replay"),
    "replay_fill": _gauge("share of the inserts that a replay needs before anything is learned"),
    "replay_starved_s": _counter("seconds that learning has waited for inserts, at its bound of samples per insert"),
    "ratio_limited_s": _counter("seconds that rollouts have waited for learning to get through the samples due"),
    "replay_starved_fraction": _gauge("share of the time in which learning waits for inserts at that bound"),
    "ratio_limited_fraction": _gauge("share of the time in which rollouts wait for samples that are due"),
    "update_ms": _gauge("milliseconds of one update"),
    "learning_rate": _gauge("present learning rate"),
    "loss": _gauge("newest loss"),
    "entropy": _gauge("mean entropy of the policy in the last updates"),
    "grad_norm": _gauge("newest norm of the gradient, before clipping"),
    "syncs_by_acting": _counter("versions that a broker was seen to act with", "acting"),
    "lag_by_acting": _gauge("versions between a broker's newest and the newest published", "acting"),
    "divergence_by_acting": _gauge("how far the newest policy is from that of a broker", "acting"),
    "acting": _gauge("brokers that chose the actions of the rollouts of the last minute"),
    "rollouts_by_fate": _counter("rollouts taken, by what became of them", "fate"),
    "queue_rows": _gauge("rollouts in the queue"),
    "queue_capacity": _gauge("rollouts that credit was given for"),
    "peers": _gauge("actors with a session"),
    "checkpoint_age_s": _gauge("seconds since the last checkpoint of this start"),
    "drifts": _counter("checkpoints at which ranks had other weights than the first one, which they took over"),
    "write_errors": _counter("checkpoints and rows of metrics that could not be written"),
    # evaluator
    "evaluations": _counter("policies evaluated"),
    "evaluations_waiting": _gauge("checkpoints that wait for their evaluation"),
    "evaluations_failed": _counter("evaluations that failed, and were tried again"),
    "evaluated_return": _gauge("mean return of the newest evaluation"),
    "best_return": _gauge("mean return of the best evaluation"),
}


def exported(key: str) -> tuple[str, float]:
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
            name, factor = exported(key)
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

    family = HistogramMetricFamily(HOP_METRIC, "seconds that a hop takes, by hop", labels=[*labels, "hop"])
    for hop, page in pages.items() if isinstance(pages, dict) else ():
        edges = [*map(str, EDGES_S), "+Inf"]
        buckets = list(zip(edges, accumulate(page["buckets"]), strict=True))
        family.add_metric([*labels.values(), hop], buckets, page["sum_s"])
    if family.samples:
        yield family
