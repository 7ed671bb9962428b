"""Starts a run on this machine, with other machines that ssh reaches."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from zerobeast.common.config.settings_table import RUN
from zerobeast.common.files import metrics
from zerobeast.common.process.terminal import say
from zerobeast.common.settings import RunConfig
from zerobeast.common.settings.net import readings
from zerobeast.launcher.fleet import Fleet
from zerobeast.launcher.hosts import Host
from zerobeast.launcher.private_folder import private_folder
from zerobeast.launcher.supervisor import Ending
from zerobeast.plan.preparation import prepare_run
from zerobeast.plan.resolution import Flags, ResolvedRun, Say, describe_values


@contextlib.contextmanager
def prepare_fleet(
    resolved: ResolvedRun[Flags],
    environ: Mapping[str, str],
    *,
    hosts: Sequence[Host] = (),
    say: Say = say,
    remark: Say = say,
) -> Iterator[Fleet]:
    """Prepare a run. A new one that is not started, or that a service refuses, leaves nothing.

    Args:
      resolved: what to run.
      environ: the environment of this process.
      hosts: other machines that take part.
      say: takes lines about what is about to be started.
      remark: takes those that people may not expect.

    Yields:
      Its services, none of them added yet.

    Raises:
      ConfigError: nothing was started, for the reason it gives.
    """
    with prepare_run(resolved, say, several=bool(hosts)) as run, private_folder() as sockets:
        config = run.config
        verb = "continuing" if run.continues else "training"
        say(f"{verb} {config.name} ({config.env.id}, {config.section}) in {config.folder}")
        for line in run.notes:
            remark(line)
        for line in (*describe_values(config, resolved.origins), *(readings(run.spec, config.net) if run.spec else ())):
            say(line)
        own_broker = bool(hosts) and config.broker.endpoint == RUN["broker.endpoint"].default  # theirs have one each
        fleet = Fleet(config, sockets, environ, keep_open=(run.lock,), own_broker=own_broker)
        say(str(fleet.plan.placement))
        if fleet.plan.placement.name == "serve":
            keys = f", with keys {config.security.keys}" if config.security.keys else ""
            broker = "" if own_broker else f"broker {config.broker.endpoint} and "
            say(f"programs connect to {broker}learner {config.learner.endpoint}{keys}")
        yield fleet
        run.keep = not fleet.refused  # of what crashes, the logs stay


def correct_ending(ending: Ending, config: RunConfig) -> Ending:
    """The same ending, unless the learner ended as if training were done, which it is not."""
    if ending.finished and not metrics.is_over(config.folder, config.total_steps):
        steps = int(metrics.read_last_row(config.folder).get("agent_steps", 0))
        return Ending(1, f"the learner was stopped from outside after {steps:,} agent steps")
    return ending
