"""`beast chaos`: train, do one fault after the other at random, and see whether every promise holds.

    beast chaos --minutes 60 --json soak.json --plot soak.png

Every setting of `beast train` is a flag here too; --seed decides the faults as well. Without --env it trains the
witness: an environment and a policy that notice when a message reaches a process that it was not meant for.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zerobeast.common.errors import BeastError
from zerobeast.common.transport import Context
from zerobeast.launcher.private_folder import private_folder
from zerobeast.tools.chaos import table, verdict
from zerobeast.tools.chaos.faults import FaultKind, draw
from zerobeast.tools.chaos.inject import Event, FaultInjector
from zerobeast.tools.chaos.plot import draw_soak
from zerobeast.tools.chaos.watch import RunWatch
from zerobeast.tools.chaos.witness.env import ENV_ID
from zerobeast.tools.throwaway_run import ThrowawayRun

START_LIMIT_S = 180.0
FIRST_LOOK_S = 15.0  #: of training in peace: what is usual
#: a run that is as fast as its environments, so that its rate says nothing about the machine; small messages and a
#: batch that messages do not divide
SETTINGS = (
    *("--local.actors", "3", "--local.env_servers", "2", "--actor.env_groups", "2", "--learner.window", "2"),
    *("--learner.checkpoint_every_s", "5", "--learner.log_every_s", "5"),
)
WITNESS = (
    *("--env", ENV_ID, "--env.kwargs", '{"pace_s": 0.04}', "--actor.envs_per_group", "3"),
    *("--net.torso", "mlp", "--net.hidden_size", "16", "--learner.unroll_length", "5", "--learner.batch_size", "8"),
)
WITNESSES = {role: f"zerobeast.tools.chaos.witness.{role}" for role in ("broker", "learner")}


def main(argv: list[str]) -> int:
    """Run a soak; returns the exit code: 1 where a promise broke."""
    options, flags = _parse(argv)
    with private_folder() as folder:
        soak = Soak(options, flags, folder)
        try:
            soak.run()
        except BeastError as error:
            soak.broken.append(str(error))
        finally:
            if options.keep:
                shutil.copytree(folder, options.keep, ignore=shutil.ignore_patterns("*.0", "*.1", "*.2"))
    soak.report()
    return 1 if soak.broken else 0


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="beast chaos", description=__doc__, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="how long; default %(default)g")
    parser.add_argument("--every", type=float, default=20.0, help="seconds from a fault to the next, mean; default 20")
    parser.add_argument("--brokers", type=int, default=2, help="brokers; default 2")
    parser.add_argument("--json", type=Path, help="write the summary here")
    parser.add_argument("--plot", type=Path, help="draw rate, memory and faults over time into this picture")
    parser.add_argument("--log", type=Path, help="write the log here as well")
    parser.add_argument("--keep", type=Path, help="copy run folder and service logs into this new folder")
    return parser.parse_known_args(argv)


class Soak:
    """One run and what is done to it.

    Args:
      options: of the command.
      flags: settings of the run.
      folder: an empty one with a short path.
    """

    def __init__(self, options: argparse.Namespace, flags: Sequence[str], folder: Path) -> None:
        self.options = options
        self.broken: list[str] = []
        self.result: dict[str, Any] = {}
        own = any(flag.partition("=")[0] in ("--env", "--env.id", "--preset", "--config") for flag in flags)
        self._flags = [*SETTINGS, *(() if own else WITNESS), *flags]
        self._modules = {} if own else WITNESSES
        self._folder = folder
        self._started_at = time.monotonic()
        self._lines: list[str] = []

    def run(self) -> None:
        """Start, disturb, settle the accounts, end.

        Raises:
          BeastError: what broke the run.
        """
        context = Context()
        try:
            with (
                ThrowawayRun(self._flags, self._folder, brokers=self.options.brokers, modules=self._modules) as fleet,
                closing(RunWatch(fleet, context)) as watch,
            ):
                fleet.start_all()
                injector = FaultInjector(fleet, watch)
                try:
                    self._disturb(injector)
                    self._judge(injector)
                finally:
                    self._collect(injector)
        finally:
            context.term()

    def report(self) -> None:
        """Say how it went, and write it where asked."""
        for sentence in self.broken:
            self.say(f"BROKEN: {sentence}")
        if not self.broken:
            self.say("every promise held")
        if self.options.json:
            self.options.json.write_text(json.dumps(self.result | {"broken": self.broken}, indent=2) + "\n")
        if self.options.log:
            self.options.log.write_text("\n".join(self._lines) + "\n")

    def say(self, text: str) -> None:
        """A line of the log."""
        self._lines.append(f"{time.monotonic() - self._started_at:8.1f}  {text}")
        sys.stdout.write(self._lines[-1] + "\n")
        sys.stdout.flush()

    def _disturb(self, injector: FaultInjector) -> None:
        watch, options = injector.watch, self.options
        if not watch.until(time.monotonic() + START_LIMIT_S, lambda: watch.progress.total(time.monotonic()) > 0):
            raise BeastError(f"training did not start within {START_LIMIT_S:.0f} s")
        self.say(f"training: {len(injector.fleet.children)} services")
        watch.until(time.monotonic() + FIRST_LOOK_S)
        end = time.monotonic() + 60 * options.minutes
        seed = injector.fleet.config.seed
        faults = draw(seed, [child.spec.name for child in injector.fleet.children])
        dice = random.Random(seed)  # noqa: S311 - has to repeat itself
        next_at = time.monotonic()
        while time.monotonic() < end:
            event = injector.do(next(faults))
            self._tell(event)
            next_at += dice.uniform(0.5, 1.5) * options.every
            watch.until(min(next_at, end))

    def _tell(self, event: Event) -> None:
        fault = event.fault
        back = "never" if event.recovery_s is None else f"{event.recovery_s:.1f} s"
        what = "stopped" if fault.kind is FaultKind.STOP else f"started in {event.start_s:.1f} s, down"
        usual = "" if event.usual is None else f" to {event.usual:.0f}/s"
        self.say(
            f"{fault.kind} {' + '.join(fault.targets)}: {what} for {fault.pause_s:.1f} s, back{usual} in {back}, "
            f"{event.lost} rollouts lost"
        )
        if event.broken:
            self.broken.append(event.broken)

    def _judge(self, injector: FaultInjector) -> None:
        watch = injector.watch
        balance = watch.settle()
        self.say(f"accounts: {asdict(balance)}")
        wrong = watch.wrong_messages(injector.starts_of_the_learner)
        self.broken += [*watch.wrong_accounts(balance), *verdict.memory(watch.memory), *wrong]
        for name, code in injector.fleet.retire().items():
            if code:
                self.broken.append(f"{name} ended with exit code {code} after SIGTERM")

    def _collect(self, injector: FaultInjector) -> None:
        watch, events, start = injector.watch, injector.events, self._started_at
        rows = table.of_services(events)
        moments, rates = watch.progress.rates(1.0)
        self.result = {
            "settings": list(self._flags),
            "minutes": self.options.minutes,
            "seed": injector.fleet.config.seed,
            "balance": asdict(watch.audit.balance()),
            "versions": list(watch.versions.values()),
            "version_drops": watch.total("policy_version_drops"),
            "refused": watch.refused,
            "table": rows,
            "events": [event.as_dict(start) for event in events],
            "rate": [[round(at - start, 2), round(rate, 2)] for at, rate in zip(moments, rates, strict=True)],
            "memory_mib": {name: verdict.ends(points) for name, points in watch.memory.items()},
        }
        self.say("\n" + table.markdown(rows))
        if self.options.plot:
            draw_soak(self.options.plot, watch, events, start)
