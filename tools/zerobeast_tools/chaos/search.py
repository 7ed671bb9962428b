"""Try random small configurations and faults, and look for a run that makes no progress.

    beast chaos search --minutes 60
    beast chaos search --seed 4711 --trials 1       # repeat one trial

A trial runs the real services with real sockets, one after the other in this process. So it takes seconds, and a run
that makes no progress does so because of its messages and not because of the machine. Each trial draws its faults:
replies are late, lost or malformed, and rollouts are corrupted in transit.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from zerobeast import commands
from zerobeast.common.config.load import load_config
from zerobeast.common.config.process import Instance
from zerobeast.common.errors import BeastError
from zerobeast.common.process.terminal import write
from zerobeast.common.service.base import Service
from zerobeast.launcher.private_folder import private_folder
from zerobeast.services.actor.service import Actor
from zerobeast.services.broker.service import Broker
from zerobeast.services.envserver.service import EnvServer
from zerobeast.services.learner.service import Learner
from zerobeast_tools.chaos.unreliable_port import Faults, UnreliablePort

FLAGS = (
    *("--env", "CartPole-v1", "--net.torso", "mlp", "--net.hidden_size", "8", "--total_steps", "1000000000"),
    *("--learner.device", "cpu", "--broker.device", "cpu", "--actor.connect_timeout_s", "1000"),
    *("--learner.log_every_s", "1000", "--learner.checkpoint_every_s", "1000", "--name", "trial"),
)
STANDSTILL_S = 120.0  #: the harshest trials take a minute from one batch to the next, because most rollouts are cut


class SearchTrial(NamedTuple):
    """One configuration and its faults."""

    seed: int
    services: dict[str, int]  #: how many actors, env-servers and brokers
    settings: dict[str, Any]  #: of the run, by name
    steps: Faults = Faults()  #: of env-servers
    inference: Faults = Faults()  #: of brokers
    rollouts: Faults = Faults()  #: of the learner, and of the rollouts that it receives

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
            services={"actor": pick.randint(1, 3), "envserver": pick.randint(1, 2), "broker": pick.randint(1, 2)},
            settings={
                "actor.env_groups": pick.randint(1, 3),
                "actor.envs_per_group": pick.randint(1, 6),
                "learner.unroll_length": pick.randint(1, 6),
                "learner.batch_size": pick.randint(1, 16),
                "learner.window": pick.randint(1, 3),
                "learner.max_policy_lag": pick.choice([0, 1, 3, 20]),
                "actor.collect_ahead": str(pick.random() < 0.7).lower(),
            },
            steps=faults(),
            inference=faults(),
            rollouts=faults(),
        )


class Outcome(NamedTuple):
    """The outcome of a trial."""

    agent_steps: int
    longest_pause_s: float
    why: str  #: why it is broken; empty if it is not


def main(argv: list[str]) -> int:
    """Search; returns the exit code: 1 if a trial stood still or a service ended."""
    options = _parse(argv)
    logging.disable(logging.ERROR)  # every fault is logged, and there are many
    try:
        return _search(options)
    finally:
        logging.disable(logging.NOTSET)


def _search(options: argparse.Namespace) -> int:
    deadline, broken, longest, count = time.monotonic() + 60 * options.minutes, [], 0.0, 0
    for seed in range(options.seed, options.seed + options.trials):
        if time.monotonic() > deadline:
            break
        trial = SearchTrial.draw(seed)
        outcome = attempt(trial, options.seconds)
        count, longest = count + 1, max(longest, outcome.longest_pause_s)
        if outcome.why:
            broken.append(trial.seed)
            write(f"{outcome.why}: --seed {trial.seed}: {trial}")
        if options.verbose:
            write(f"{trial.seed}: {outcome.agent_steps} steps, pause {outcome.longest_pause_s:.1f} s")
    write(f"{count} trials, {len(broken)} broken, longest pause {longest:.1f} s")
    return 1 if broken else 0


def attempt(trial: SearchTrial, seconds: float, standstill_s: float = STANDSTILL_S) -> Outcome:
    """Turn the services of a trial for `seconds`, then on until there is progress or it counts as stood still."""
    with private_folder() as folder, ExitStack() as stack:
        try:
            return _turn_services(*_open_services(trial, folder, stack), seconds, standstill_s)
        except BeastError as error:
            return Outcome(0, 0.0, f"a service ended ({error})")


def _open_services(trial: SearchTrial, folder: Path, stack: ExitStack) -> tuple[Learner, list[Service]]:
    """The learner and all services, which leaving `stack` closes."""
    found: list[Service] = []
    settings = trial.settings | {"seed": trial.seed, "root": folder, "learner.endpoint": f"ipc://{folder}/l"}

    def add(kind: type[Service], index: int = 0, **endpoints: str) -> Any:
        own = {f"{name}.endpoint": f"ipc://{folder}/{place}" for name, place in endpoints.items()}
        flags = [part for name, value in (settings | own).items() for part in (f"--{name}", f"{value}")]
        made = kind(load_config([*FLAGS, *flags], os.environ), Instance(index=index))  # type: ignore[arg-type, call-arg]
        stack.callback(made.close)
        made.start()
        found.append(made)
        return made

    learner: Learner = add(Learner)
    sockets = learner.sockets
    port: Any = UnreliablePort(sockets.port, trial.rollouts, trial.seed)
    sockets.plane.port = sockets.port = port
    brokers, env_servers = trial.services["broker"], trial.services["envserver"]
    for at in range(brokers):
        broker = add(Broker, at, broker=f"b{at}")
        broker.port = UnreliablePort(broker.port, trial.inference, trial.seed + at)
    for at in range(env_servers):
        server = add(EnvServer, at, envserver=f"e{at}")
        server.port = UnreliablePort(server.port, trial.steps, trial.seed + brokers + at)
    for at in range(trial.services["actor"]):
        add(Actor, at, broker=f"b{at % brokers}", envserver=f"e{at % env_servers}")
    return learner, found


def _turn_services(learner: Learner, services: Sequence[Service], seconds: float, standstill_s: float) -> Outcome:
    start = now = progress_at = time.monotonic()
    steps, longest = 0, 0.0
    while now - start < seconds or now - progress_at > 1.0:
        for service in services:
            service.turn()
        now = time.monotonic()
        done = learner.report()["agent_steps"]
        longest = max(longest, now - progress_at)
        if done > steps:
            steps, progress_at = done, now
        elif longest > standstill_s:
            return Outcome(steps, longest, f"stood still after {steps} steps")
    return Outcome(steps, longest, "")


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = commands.make_parser("beast chaos search", __doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="minutes to search; default %(default)g")
    parser.add_argument("--trials", type=int, default=10**9, help="maximum number of trials")
    parser.add_argument("--seconds", type=float, default=2.0, help="minimum seconds per trial; default %(default)g")
    parser.add_argument(
        "--seed",
        type=int,
        default=random.SystemRandom().randrange(10**6),
        help="seed of the first trial; default: random",
    )
    parser.add_argument("--verbose", action="store_true", help="print a line for each trial")
    return parser.parse_args(argv)
