"""How much of what was played is learned from, by placement and number of streams, and at which rate."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from zerobeast_tools.bench.figures import STEPS_S, Goal, figure
from zerobeast_tools.bench.options import emit_figures, parse_options
from zerobeast_tools.throwaway_run import ThrowawayRun, training
from zerobeast_tools.watched_run import WatchedRun

GOAL = Goal(">=", 0.98)
SLICE_S = 0.05  #: for which a slow learner is suspended, and then runs


class Case(NamedTuple):
    """A run that plays more than its learner can use, or may do so."""

    what: str
    flags: tuple[str, ...] = ()
    slow: bool = False  #: the learner runs half of the time


CASES = (
    Case("Pong"),
    Case(
        "Pong, compose's 4 actors and 2 env-servers",
        ("--local.placement", "apart", "--local.actors", "4", "--local.env_servers", "2"),
    ),
    Case("Pong, 8 env groups an actor", ("--local.placement", "apart", "--actor.env_groups", "8")),
    Case("Pong, the learner slowed by half", slow=True),
    Case("CartPole", ("--env", "CartPole-v1")),
    Case("CartPole, 8 workers", ("--env", "CartPole-v1", "--local.actors", "8")),
    Case("CartPole, the learner slowed by half", ("--env", "CartPole-v1"), slow=True),
)


class Waste(NamedTuple):
    """What became of what was played in a while."""

    learned_share: float  #: of the agent steps that were played
    lost: dict[str, int]  #: rollouts that were not learned from, by reason
    rate: float  #: agent steps learned from, a second
    waits: float  #: mean share of the time for which env groups wait for credit


def main(argv: list[str]) -> int:
    """`beast bench waste`."""
    options, config, flags = parse_options("waste", __doc__, argv, seconds=30.0, warmup=15.0)
    cases = CASES if not flags else (Case(f"{config.env.id}, {' '.join(flags)}"),)
    figures, details = [], {}
    for case in cases:
        waste = _measure([*case.flags, *flags], options.warmup, options.seconds, slow=case.slow)
        details[case.what] = waste._asdict()
        waits = f"{case.what}: rate, groups wait for credit {waste.waits:.0%} of the time"
        figures += [
            figure(f"{case.what}: learned from", waste.learned_share, "of the steps played", GOAL),
            figure(waits, waste.rate, STEPS_S),
        ]
    emit_figures(figures, options.json, cases=details)
    return 0


def _measure(flags: list[str], warmup_s: float, seconds: float, *, slow: bool) -> Waste:
    """Train for a while and count what became of the rollouts.

    Raises:
      BeastError: the run does not train.
    """
    with training(flags) as run, _slow_down(run) if slow else _leave():
        time.sleep(warmup_s)
        before, steps, since = count_fates(run), run.agent_steps(), time.monotonic()
        time.sleep(seconds)
        fates, learned, spent = count_fates(run) - before, run.agent_steps() - steps, time.monotonic() - since
        actors = run.pages("actor")
        run.check()
    return waste_of(fates, learned / spent, actors)


def waste_of(fates: Counter[str], rate: float, actors: Sequence[Mapping[str, Any]]) -> Waste:
    """What became of what was played.

    Args:
      fates: rollouts of that while, as `count_fates` counts them.
      rate: agent steps learned from, a second.
      actors: their health pages at the end of it.
    """
    waits = [page.get("waiting_credit_fraction") or 0.0 for page in actors]
    lost = {reason: count for reason, count in fates.items() if reason != "used"}
    return Waste(fates["used"] / max(1, fates.total()), lost, rate, sum(waits) / max(1, len(waits)))


def count_fates(run: WatchedRun) -> Counter[str]:
    """Rollouts so far by what became of them; those cut off in an actor are among them."""
    fates = Counter(cut=sum(page.get("rollouts_cut", 0) for page in run.pages("actor")))
    for page in run.pages("learner"):
        fates.update(page["rollouts_by_fate"])
    return fates


@contextmanager
def _slow_down(run: ThrowawayRun) -> Iterator[None]:
    """Suspend the learner half of the time."""
    ended, name = threading.Event(), run.children[0].spec.name

    def alternate() -> None:
        while not ended.wait(SLICE_S):
            run.freeze(name)
            ended.wait(SLICE_S)
            run.thaw(name)

    thread = threading.Thread(target=alternate)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _leave() -> Iterator[None]:
    yield
