"""Health pages of a run that does well, one of each service."""

from typing import Any

from zerobeast.common.health.figures import ServiceView
from zerobeast.common.health.hops import Histogram

Page = dict[str, Any]
PAGES: dict[str, Page] = {
    "learner": {
        "agent_steps": 1_234_567,
        "agent_steps_per_s": 1234.4,
        "env_frames": 4_938_268,
        "episodes": 1500,
        "mean_return_100": -3.456,
        "peers": 2,
        "policy_lag_max": 3,
        "policy_lag_mean": 1.25,
        "policy_version": 50,
        "progress_age_s": 0.2,
        "queue_capacity": 64,
        "queue_rows": 12,
        "return_history": [-21.0, -20.0, -15.0, -3.456],
        "total_steps": 10_000_000,
        "update_ms": 120.0,
        "updates": 7,
        "uptime_s": 3725.0,
        "waiting_fraction": 0.31,
    },
    "broker": {
        "batch_rows_mean": 27.5,
        "busy_fraction": 0.4,
        "clients": 2,
        "max_batch_rows": 256,
        "policy_version": 50,
        "rows_per_s": 1300.0,
    },
    "envserver": {"agent_steps_per_s": 1240.0, "busy_fraction": 0.5, "envs": 32, "sessions": 2},
    "actor": {
        "agent_steps_per_s": 1240.0,
        "busy_fraction": 0.1,
        "envs": 32,
        "groups": 2,
        "waiting_broker_fraction": 0.5,
        "waiting_connect_fraction": 0.0,
        "waiting_credit_fraction": 0.1,
        "waiting_env_fraction": 0.2,
    },
}


def passed(*seconds: float) -> Histogram:
    """A hop that took this long, time by time."""
    histogram = Histogram()
    for value in seconds:
        histogram.add(value)
    return histogram


def page_of(**seconds: list[float]) -> Page:
    """What a page says of hops that were passed lately."""
    found = {name: passed(*times) for name, times in seconds.items()}
    return {"hops": {name: {"recent": hop.buckets, "recent_s": hop.sum_s} for name, hop in found.items()}}


def services(**changes: Page) -> list[ServiceView]:
    """A healthy run except for `changes`; every service is on its own machine."""
    own = {role: {"role": role, "state": "ready", "cores": [f"{role} 0", f"{role} 1"]} for role in PAGES}
    return [ServiceView(f"{role} 0", role, own[role] | page | changes.get(role, {})) for role, page in PAGES.items()]
