"""Steady training rate of the real system, compared with the limit measured in the same run.

The speed of a shared machine changes from minute to minute, so the two measurements take turns: the system trains for a
while, then its services are suspended while the parts are measured, and so on.
"""

import argparse
import time
from statistics import fmean
from typing import Any, NamedTuple

from zerobeast.common.process.roles import SERVICES
from zerobeast.common.settings import RunConfig
from zerobeast_tools.bench import limit
from zerobeast_tools.bench.figures import STEPS_S, Goal, figure
from zerobeast_tools.bench.options import emit_figures, parse_options
from zerobeast_tools.throwaway_run import training
from zerobeast_tools.watched_run import WatchedRun

TURN_S = 10.0
SETTLING_S = 2.0  #: after a pause, for caches and queues to fill


class Training(NamedTuple):
    """Measurements of a run between two moments."""

    rate: float  #: agent steps a second
    cpu_s: dict[str, float]  #: role -> CPU seconds a second that its services use
    pages: dict[str, dict[str, Any]]  #: the newest health page of each role
    seconds: float  #: between the two


def main(argv: list[str]) -> int:
    """`beast bench train`: limit and training in turn, then the ratio."""
    options, config, flags = parse_options("train", __doc__, argv, seconds=60.0, warmup=20.0, part=0.5)
    with limit.Yardstick(config) as yardstick:
        best = limit.combine_rates(*yardstick.measure(options.part))["limit"]
        run, machine = _in_turn(flags, yardstick, options, max(best, key=lambda name: best[name]))
    precision = str(run.pages["learner"]["precision"])
    at_work, cpu_s = machine["at_work"], sum(run.cpu_s.values())
    outside = 1 - run.rate * limit.cost_s(at_work, precision) / cpu_s
    ratio, busy_ratio, most_outside = _goals(config)
    what = f"{config.env.id}, net.torso {config.net.torso}{f', {config.net.core}' if config.net.recurrent else ''}"
    figures = [
        figure(f"{what}: rate over the limit", run.rate, STEPS_S, ratio, machine["best"]),
        figure(f"{what}: over it in {precision}", run.rate, STEPS_S, None, machine["limit"][precision]),
        figure(f"{what}: over it with all cores at work", run.rate, STEPS_S, busy_ratio, at_work["limit"][precision]),
        # the yardstick if a GPU does all the rest
        figure(f"{what}: over environments alone", run.rate, STEPS_S, None, machine["cores"] * at_work["env"]),
        figure(f"{what}: CPU outside the three parts", outside, "of all", most_outside),
    ]
    details = {"machine": machine, **run._asdict(), "precision": precision}
    emit_figures(figures, options.json, f"{_describe(run)}\n{limit.format_rates(machine)}", **details)
    return 0


def _goals(config: RunConfig) -> tuple[Goal | None, Goal | None, Goal | None]:
    """Goals for the rate, alone and with all cores at work, and for the CPU outside the three parts."""
    if config.env.id == "CartPole-v1":  # costs nothing, so this measures the system, with large messages
        return Goal(">=", 25_000) if config.actor.envs_per_group >= 64 else None, None, None
    alone = 0.8 if config.net.torso == "deep" or config.net.recurrent else 0.85
    return Goal(">=", alone, of_ratio=True), Goal(">=", 0.85, of_ratio=True), Goal("<=", 0.1)


def _describe(run: Training) -> str:
    parts = ", ".join(f"{role} {cores:.2f}" for role, cores in run.cpu_s.items())
    keys = {
        "learner": ("waiting_fraction", "policy_lag_mean", "queue_rows"),
        "broker": ("busy_fraction", "batch_rows_mean"),
        "actor": ("waiting_env_fraction", "waiting_broker_fraction", "waiting_credit_fraction"),
        "envserver": ("busy_fraction",),
    }
    lines = [f"{sum(run.cpu_s.values()):.2f} cores in use: {parts}"]
    for role, names in keys.items():
        page = run.pages.get(role, {})
        lines.append(f"  {role:<10} " + "  ".join(f"{name} {page.get(name)}" for name in names))
    return "\n".join(lines)


def measure(flags: list[str], warmup_s: float, seconds: float) -> Training:
    """Train for a while in a throw-away folder.

    Args:
      flags: settings of the run.
      warmup_s: seconds of training before measuring begins.
      seconds: to measure.

    Raises:
      BeastError: the run does not train.
    """
    with training(flags) as run:
        time.sleep(warmup_s)
        return watch_rate(run, seconds)


def _in_turn(
    flags: list[str], yardstick: limit.Yardstick, options: argparse.Namespace, best: str
) -> tuple[Training, limit.Rates]:
    """Measure training and the limit in turns; returns their means, the limit in precision `best` and the run's own."""
    turns = max(1, round(options.seconds / TURN_S))
    seen, machines = [], []
    with training(flags) as run:
        time.sleep(options.warmup)
        own = str(run.pages("learner")[0]["precision"])
        for _ in range(turns):
            run.freeze_all()
            machines.append(yardstick.measure(options.part, list(dict.fromkeys([best, own]))))
            run.thaw_all()
            time.sleep(SETTLING_S)
            seen.append(watch_rate(run, options.seconds / turns))
    alone, at_work = (limit.mean(rates) for rates in zip(*machines, strict=True))
    cpu_s = limit.mean([each.cpu_s for each in seen])
    seconds = [each.seconds for each in seen]
    rate = fmean((each.rate for each in seen), seconds)
    return Training(rate, cpu_s, seen[-1].pages, sum(seconds)), limit.combine_rates(alone, at_work)


def watch_rate(run: WatchedRun, seconds: float) -> Training:
    """Measure a run's services for `seconds` or a little longer: from one change of the learner's count to another.

    On policy it changes with each update, and a slice may have no more than one.

    Raises:
      BeastError: a service has ended, or the learner has stopped learning.
    """
    first, before = run.next_count(), _pages(run)
    time.sleep(seconds)
    last, after = run.next_count(), _pages(run)
    run.check()
    spent = last["uptime_s"] - first["uptime_s"]  # the learner's own clock: a page is from its last turn, not from now
    rate = (last["agent_steps"] - first["agent_steps"]) / spent
    cpu_s = {role: _cores(before[role], pages) for role, pages in after.items()}
    newest = {role: pages[-1] for role, pages in after.items() if pages}
    return Training(rate, cpu_s, newest | {"learner": last}, spent)


def _pages(run: WatchedRun) -> dict[str, list[dict[str, Any]]]:
    return {role: run.pages(role) for role in sorted(SERVICES)}


def _cores(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> float:
    """CPU seconds a second of a role's services between two pages of each."""
    cores, earlier = 0.0, {page["pid"]: page for page in before}
    for page in after:
        start = earlier.get(page["pid"], page)
        cores += (page["cpu_s"] - start["cpu_s"]) / max(page["uptime_s"] - start["uptime_s"], 1e-3)
    return cores
