"""Train under random faults, one after the other, and check every guarantee.

    beast chaos --minutes 60 --json soak.json --plot soak.png

Every setting of `beast train` is a flag here too; --seed also determines the faults. Without --env and --algo it trains
the witness: an environment and a policy that detect messages delivered to the wrong process. With --algo alone, that
algorithm is trained on the same environment, which then accepts any action.
"""

import argparse
import json
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict
from math import nan
from pathlib import Path
from typing import Any

from zerobeast import commands
from zerobeast.common.errors import BeastError
from zerobeast.common.process.terminal import write
from zerobeast.launcher.private_folder import private_folder
from zerobeast_tools.chaos import trial_table, verdict
from zerobeast_tools.chaos.faults import FaultKind, draw_faults
from zerobeast_tools.chaos.inject import Event, FaultInjector, disturbed_run
from zerobeast_tools.chaos.watch import RunWatch
from zerobeast_tools.chaos.witness.env import ENV_ID
from zerobeast_tools.chaos.witness.spec import HOME

PLOT_COLORS = {FaultKind.KILL: "tab:red", FaultKind.TERM: "tab:orange", FaultKind.STOP: "tab:blue"}
PLOT_PERIOD_S = 2.0  #: of its rates
FIRST_LOOK_S = 15.0  #: of undisturbed training, to see the usual rate
#: a run that is only as fast as its environments, so that its rate does not depend on the machine; small messages, and
#: a batch that is no whole number of them
SETTINGS = (
    *("--local.actors", "3", "--local.env_servers", "2", "--local.workers", "2"),
    *("--actor.env_groups", "2", "--learner.window", "2"),
    *("--learner.checkpoint_every_s", "5", "--learner.log_every_s", "5"),
)
WITNESS = (
    *("--algo", f"{HOME}.spec:WITNESS"),
    *("--env", ENV_ID, "--env.kwargs", '{"pace_s": 0.04}', "--actor.envs_per_group", "3"),
    *("--net.torso", "mlp", "--net.hidden_size", "16", "--learner.unroll_length", "5", "--learner.batch_size", "8"),
)
#: the same pace for any algorithm; its preset sets the rest
ANY_ACTION = (
    *("--env", ENV_ID, "--env.kwargs", '{"pace_s": 0.04, "strict": false}', "--actor.envs_per_group", "3"),
    *("--net.normalize_obs", "true", "--learner.batch_size", "8"),
)
OWN_FLAGS = {"--env", "--env.id", "--preset", "--config", "--algo"}  #: flags that determine what to train
STORING = (*WITNESS, "--algo", f"{HOME}.spec:STORING")  #: acknowledges what it has stored, as a replay


def main(argv: list[str]) -> int:
    """Run a soak; returns the exit code: 1 if a guarantee broke."""
    options, flags = _parse(argv)
    with private_folder() as folder:
        soak = Soak(options)
        try:
            soak.run(flags, folder)
        except BeastError as error:
            soak.broken.append(str(error))
        finally:
            if options.keep:
                shutil.copytree(folder, options.keep, ignore=shutil.ignore_patterns("*.0", "*.1", "*.2"))
    soak.report()
    return 1 if soak.broken else 0


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = commands.make_parser("beast chaos", __doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="minutes to run; default %(default)g")
    parser.add_argument("--every", type=float, default=20.0, help="mean seconds between faults; default 20")
    parser.add_argument("--brokers", type=int, default=2, help="number of brokers; default 2")
    parser.add_argument(
        "--store", action="store_true", help="the witness acknowledges rollouts when stored, as a replay does"
    )
    parser.add_argument("--json", type=Path, help="write the summary to this file")
    parser.add_argument("--plot", type=Path, help="plot rate, memory and faults over time to this picture")
    parser.add_argument("--log", type=Path, help="also write the log to this file")
    parser.add_argument("--keep", type=Path, help="copy run folder and service logs into this new folder")
    return parser.parse_known_args(argv)


class Soak:
    """The log and result of one run, and what broke."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.broken: list[str] = []
        self.result: dict[str, Any] = {}
        self._started_at = time.monotonic()
        self._lines: list[str] = []

    def run(self, flags: Sequence[str], folder: Path) -> None:
        """Start, disturb, settle the accounts, end; see `ThrowawayRun`. Raises BeastError if the run breaks."""
        named = {flag.partition("=")[0] for flag in flags} & OWN_FLAGS
        witness = STORING if self.options.store else WITNESS
        settings = [*SETTINGS, *(ANY_ACTION if named == {"--algo"} else () if named else witness), *flags]
        with disturbed_run(settings, folder, brokers=self.options.brokers) as injector:
            self.say("training: " + ", ".join(child.spec.name for child in injector.fleet.children))
            try:
                self._disturb(injector)
                self._judge(injector)
            finally:
                self._collect(injector, settings)

    def report(self) -> None:
        """Report how it went, and write it to the files that were asked for."""
        for sentence in self.broken:
            self.say(f"BROKEN: {sentence}")
        if not self.broken:
            self.say("every guarantee held")
        if self.options.json:
            self.options.json.write_text(json.dumps(self.result | {"broken": self.broken}, indent=2) + "\n")
        if self.options.log:
            self.options.log.write_text("\n".join(self._lines) + "\n")

    def say(self, text: str) -> None:
        """Write a line of the log."""
        self._lines.append(f"{time.monotonic() - self._started_at:8.1f}  {text}")
        write(self._lines[-1])

    def _disturb(self, injector: FaultInjector) -> None:
        watch, seed = injector.watch, injector.fleet.config.seed
        watch.until(time.monotonic() + FIRST_LOOK_S)
        faults = draw_faults(seed, [child.spec.name for child in injector.fleet.children])
        dice = random.Random(seed)  # noqa: S311 - has to be repeatable
        next_at = time.monotonic()
        end = next_at + 60 * self.options.minutes
        while time.monotonic() < end:
            event = injector.do(next(faults))
            self.say(str(event))
            if event.broken:
                self.broken.append(event.broken)
            next_at += dice.uniform(0.5, 1.5) * self.options.every
            watch.until(min(next_at, end))

    def _judge(self, injector: FaultInjector) -> None:
        watch = injector.watch
        balance = watch.draw_balance()
        self.say(f"accounts: {asdict(balance)}")
        wrong = watch.wrong_messages(injector.starts_of_the_learner)
        self.broken += [*watch.wrong_accounts(balance), *verdict.memory(watch.memory), *wrong]
        for name, code in injector.fleet.retire().items():
            if code:
                self.broken.append(f"{name} ended with exit code {code} after SIGTERM")

    def _collect(self, injector: FaultInjector, settings: list[str]) -> None:
        watch, events = injector.watch, injector.events
        rows = trial_table.service_rows(events)
        self.result = {
            "settings": settings,
            "seed": injector.fleet.config.seed,
            "balance": asdict(watch.audit.balance()),
            "versions": list(watch.versions.values()),
            "version_drops": watch.total("policy_version_drops"),
            "refused": watch.refused,
            "table": rows,
            "events": [event.as_dict(self._started_at) for event in events],
            "memory_mib": {name: verdict.ends(points) for name, points in watch.memory.items()},
        }
        self.say("\n" + trial_table.markdown(rows))
        if self.options.plot:
            draw_soak(self.options.plot, watch, events, self._started_at)


def draw_soak(out: Path, watch: RunWatch, events: Sequence[Event], start: float) -> None:
    """Write a picture: the rate over time with a mark at every fault, and the memory of every service.

    `start` is the moment that counts as 0.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    rate, memory = figure.subplots(2, 1, sharex=True)
    moments, rates = watch.progress.rates(PLOT_PERIOD_S)
    rate.plot([(at - start) / 60 for at in moments], rates, color="black", linewidth=0.8)
    for kind, color in PLOT_COLORS.items():
        same = [event for event in events if event.fault.kind is kind]
        spans = [((event.at - start) / 60, (event.ready_at - event.at) / 60) for event in same]
        rate.broken_barh(spans, (0, 1), transform=rate.get_xaxis_transform(), color=color, alpha=0.4, label=kind)
    rate.set(ylabel="rollouts learned from, per second", ylim=(0, None))
    for name, points in sorted(watch.memory.items()):
        before = [0.0, *(uptime_s for _, uptime_s, _ in points)]
        minutes = [(at - start) / 60 for at, _, _ in points]
        # a gap wherever a new process takes over
        sizes = [size if uptime_s >= last else nan for (_, uptime_s, size), last in zip(points, before, strict=False)]
        memory.plot(minutes, sizes, label=name, linewidth=0.8)
    memory.set(xlabel="minutes", ylabel="resident memory, MiB", ylim=(0, None))
    for panel in (rate, memory):
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7, ncols=2, loc="lower right")
    figure.savefig(out, dpi=110)
