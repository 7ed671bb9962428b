"""`beast chaos search`: draw small configurations and faults at random, and look for a run that stands still.

    beast chaos search --minutes 60
    beast chaos search --seed 4711 --trials 1       # one of them again

All services of a trial are the real ones with real sockets, turned one after the other in this process, so that a trial
takes seconds and what stands still does so because of what was said and not because of the machine. Replies are late,
lost or malformed, and rollouts are spoiled on their way, as each trial draws it.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from zerobeast.common.config.load import load
from zerobeast.common.config.process import Instance
from zerobeast.common.errors import BeastError
from zerobeast.common.service.base import Service
from zerobeast.launcher.private_folder import private_folder
from zerobeast.services.actor.service import Actor
from zerobeast.services.broker.service import Broker
from zerobeast.services.envserver.service import EnvServer
from zerobeast.services.learner.service import Learner
from zerobeast.tools.chaos.unreliable_port import Faults, UnreliablePort

PEACE = ("--env", "CartPole-v1", "--net.torso", "mlp", "--net.hidden_size", "8", "--total_steps", "1000000000")
SMALL = ("--learner.device", "cpu", "--broker.device", "cpu", "--actor.connect_timeout_s", "1000")
PERIODS = ("--learner.log_every_s", "1000", "--learner.checkpoint_every_s", "1000")
STANDSTILL_S = 120.0  #: the harshest trials take a minute from one batch to the next, because most rollouts are cut


@dataclass(frozen=True)
class SearchTrial:
    """One configuration and what is done to it."""

    seed: int
    actors: int
    env_servers: int
    brokers: int
    env_groups: int
    envs_per_group: int
    unroll_length: int
    batch_size: int
    window: int
    max_policy_lag: int
    collect_ahead: bool
    steps: Faults  #: of env-servers
    inference: Faults  #: of brokers
    rollouts: Faults  #: of the learner, and of the rollouts that it receives

    @classmethod
    def draw(cls, seed: int) -> SearchTrial:
        """The trial of a seed."""
        pick = random.Random(seed)  # noqa: S311, a trial has to be repeatable

        def faults() -> Faults:
            if pick.random() < 0.4:
                return Faults()
            rate = pick.choice([0.01, 0.05, 0.2])
            late, lost, malformed = (rate * pick.random() for _ in range(3))
            return Faults(late, pick.choice([0.1, 1.0, 3.0]), lost, malformed, burst=pick.random() < 0.3)

        return cls(
            seed=seed,
            actors=pick.randint(1, 3),
            env_servers=pick.randint(1, 2),
            brokers=pick.randint(1, 2),
            env_groups=pick.randint(1, 3),
            envs_per_group=pick.randint(1, 6),
            unroll_length=pick.randint(1, 6),
            batch_size=pick.randint(1, 16),
            window=pick.randint(1, 3),
            max_policy_lag=pick.choice([0, 1, 3, 20]),
            collect_ahead=pick.random() < 0.7,
            steps=faults(),
            inference=faults(),
            rollouts=faults(),
        )

    def flags(self, folder: Path) -> list[str]:
        """Settings of the run."""
        settings = {
            "actor.env_groups": self.env_groups,
            "actor.envs_per_group": self.envs_per_group,
            "actor.collect_ahead": str(self.collect_ahead).lower(),
            "learner.unroll_length": self.unroll_length,
            "learner.batch_size": self.batch_size,
            "learner.window": self.window,
            "learner.max_policy_lag": self.max_policy_lag,
            "learner.endpoint": f"ipc://{folder}/l",
            "name": "trial",
            "root": folder,
            "seed": self.seed,
        }
        return [
            *PEACE,
            *SMALL,
            *PERIODS,
            *(part for name, value in settings.items() for part in (f"--{name}", f"{value}")),
        ]


class Outcome(NamedTuple):
    """What came of a trial."""

    agent_steps: int
    longest_pause_s: float
    why: str  #: it is broken; empty: it is not


def main(argv: list[str]) -> int:
    """Search; returns the exit code: 1 if a trial stood still or a service ended."""
    options = _parse(argv)
    with _silent_log():
        return _searched(options)


@contextmanager
def _silent_log() -> Iterator[None]:
    """Every fault is noted, and there are many."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _searched(options: argparse.Namespace) -> int:
    deadline, broken, longest, count = time.monotonic() + 60 * options.minutes, [], 0.0, 0
    for trial in _trials(options.seed, options.trials, deadline):
        outcome = attempt(trial, options.seconds)
        count, longest = count + 1, max(longest, outcome.longest_pause_s)
        if outcome.why:
            broken.append(trial.seed)
            sys.stdout.write(f"{outcome.why}: --seed {trial.seed}: {asdict(trial)}\n")
        if options.verbose:
            sys.stdout.write(f"{trial.seed}: {outcome.agent_steps} steps, pause {outcome.longest_pause_s:.1f} s\n")
        sys.stdout.flush()
    sys.stdout.write(f"{count} trials, {len(broken)} broken, longest pause {longest:.1f} s\n")
    return 1 if broken else 0


def attempt(trial: SearchTrial, seconds: float) -> Outcome:
    """Turn the services of a trial for some seconds, and on until there is progress or it has stood still."""
    with private_folder() as folder, ExitStack() as stack:
        try:
            learner, others = _opened(trial, folder, stack)
            return _turned(learner, [learner, *others], seconds)
        except BeastError as error:
            return Outcome(0, 0.0, f"a service ended ({error})")


def _opened(trial: SearchTrial, folder: Path, stack: ExitStack) -> tuple[Learner, list[Service]]:
    def service(kind: type[Service], index: int = 0, **endpoints: str) -> Service:
        places = [
            part for name, place in endpoints.items() for part in (f"--{name}.endpoint", f"ipc://{folder}/{place}")
        ]
        config = load([*trial.flags(folder), *places], os.environ)
        made = kind(config, Instance(index=index))  # type: ignore[arg-type, call-arg]
        stack.callback(made.close)
        made.open()
        return made

    learner = service(Learner)
    brokers = [service(Broker, at, broker=f"b{at}") for at in range(trial.brokers)]
    servers = [service(EnvServer, at, envserver=f"e{at}") for at in range(trial.env_servers)]
    assert isinstance(learner, Learner)
    learner.intake.port = UnreliablePort(learner.intake.port, trial.rollouts, trial.seed)  # type: ignore[assignment]
    for at, server in enumerate([*brokers, *servers]):
        faults = trial.inference if isinstance(server, Broker) else trial.steps
        server.port = UnreliablePort(server.port, faults, trial.seed + at)  # type: ignore[attr-defined]
    actors = [
        service(Actor, at, broker=f"b{at % trial.brokers}", envserver=f"e{at % trial.env_servers}")
        for at in range(trial.actors)
    ]
    return learner, [*brokers, *servers, *actors]


def _turned(learner: Learner, services: Sequence[Service], seconds: float) -> Outcome:
    start = now = progress_at = time.monotonic()
    steps, longest = 0, 0.0
    while now - start < seconds or now - progress_at > 1.0:
        for service in services:
            service.poll(0.0)
            service.tick(service.clock())
        now = time.monotonic()
        done = learner.report()["agent_steps"]
        longest = max(longest, now - progress_at)
        if done > steps:
            steps, progress_at = done, now
        elif longest > STANDSTILL_S:
            return Outcome(steps, longest, f"stood still after {steps} steps")
    return Outcome(steps, longest, "")


def _trials(seed: int, most: int, deadline: float) -> Iterator[SearchTrial]:
    for number in range(most):
        if time.monotonic() > deadline:
            return
        yield SearchTrial.draw(seed + number)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="beast chaos search", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="how long; default %(default)g")
    parser.add_argument("--trials", type=int, default=10**9, help="how many at most")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each trial, at least; default %(default)g")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="of the first trial")
    parser.add_argument("--verbose", action="store_true", help="a line for each trial")
    return parser.parse_args(argv)
