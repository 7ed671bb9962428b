"""`beast track RUN`: hand the rows and videos of a run to an experiment tracker, while it trains or afterwards."""

import os
import signal
import sys

from zerobeast.common.config.load import gather
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.process.logs import log_to_stderr
from zerobeast.common.process.signals import handled
from zerobeast.common.settings import Section, setting
from zerobeast.tracking.process import Follower, alone, run
from zerobeast.tracking.sinks import PROJECT, tracker

HELP = """beast track RUN --to trackio|wandb [--project P] [--follow]

  RUN          name of a run, or the path of its folder
  --to NAME    trackio, wandb, or module:Class of your own
  --project P  under which the tracker shows the run, zerobeast by default
  --follow     until Ctrl-C, for a run that trains; `beast train --track NAME` does so by itself

Nothing is written twice: what the tracker has got from this folder, it is not sent again. Trackers have their own
variables, such as WANDB_MODE=offline. Needs the extra zerobeast[trackio] or zerobeast[wandb].
"""


class TrackFlags(Section):
    """Flags of the command itself."""

    to: str = setting("", "trackio, wandb, or module:Class")
    project: str = setting(PROJECT, "under which the tracker shows the run")
    follow: bool = setting(default=False, meaning="until it is stopped")
    parent: int = setting(0, "process whose end ends this one; 0: none", ge=0)


def main(argv: list[str]) -> int:
    """Run `beast track`; returns the exit code.

    Raises:
      BeastError: there is no such run or tracker, or not everything could be written.
    """
    if any(flag in ("-h", "--help") for flag in argv):
        sys.stdout.write(HELP)
        return 0
    if not argv or argv[0].startswith("-"):
        raise ConfigError("which run? beast track RUN --to trackio|wandb; --help explains")
    loaded = gather(argv[1:], os.environ, own=TrackFlags)
    own, folder = loaded.own, run_files.find(argv[0], loaded.config.root)
    if not own.to:
        raise ConfigError("--to: expected trackio, wandb or module:Class")
    make, asked = tracker(own.to), list[int]()

    def ended() -> bool:
        return not own.follow or bool(asked) or (own.parent > 0 and os.getppid() != own.parent)

    log_to_stderr("tracker")
    with alone(folder, own.to), handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), lambda n, _: asked.append(n)):
        count = run(Follower(folder, own.to, make, own.project), ended)
    sys.stdout.write(f"{folder.name}: {count} points to {own.to}, project {own.project}\n")
    return 0
