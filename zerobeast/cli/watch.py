"""Show the live view of a run that was started elsewhere, until the run ends. Ctrl-C leaves the run alone.

For a sweep it shows the newest run.

Exit code: 0 the run has ended; 2 no service of the run is running.
"""

import contextlib
import time
from pathlib import Path
from typing import Any

from zerobeast import commands
from zerobeast.common.config.load import resolve_flags
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import metrics, run_files
from zerobeast.common.health.figures import format_count, number
from zerobeast.common.process.terminal import say
from zerobeast.common.settings import RunConfig
from zerobeast.discovery.folder_services import REMOTE_HELP, find_newest
from zerobeast.launcher import view
from zerobeast.launcher.foreign_processes import find_processes, is_running
from zerobeast.launcher.pages import Gatherer
from zerobeast.launcher.screen import make_screen

TURN_S, LOOK_S = 0.1, 0.5
MISSES = 3  #: looks that find nothing, one after the other, until a run counts as ended


def main(argv: list[str]) -> int:
    """Run `beast watch`. Raises ConfigError if there is no such run, or nothing runs there."""
    parser = commands.make_parser("beast watch", __doc__)
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run, a sweep, or its folder; default: the newest run")
    commands.add_root(parser)
    parser.add_argument("--remote", action="store_true", help=REMOTE_HELP)
    parser.add_argument("--plain", action="store_true", help="print a line every few seconds instead of the live view")
    flags, settings = parser.parse_known_args(argv)
    root = Path(flags.root).expanduser()
    place = run_files.find_first(flags.run, root, lambda at: (at / run_files.SWEEP).is_file()) if flags.run else root
    run = flags.run if place is None or run_files.is_run(place) else find_newest(place)
    if run is None:
        raise ConfigError(
            f"no run in {place} has been started; --root names another folder", path="root", value=str(place)
        )
    folder = run_files.find_run(str(run), root)
    config = resolve_flags(["--config", str(folder / run_files.CONFIG), *settings], {}, read_only=True).config
    if not is_running(folder, remote=flags.remote):
        done = (
            f"{format_count(metrics.read_last_row(folder).get('agent_steps', 0))} of {config.total_steps:,} agent steps"
        )
        elsewhere = "" if flags.remote else "; --remote also looks on other machines"
        raise ConfigError(
            f"run {folder.name!r} is not running; it has done {done}{elsewhere}", path="run", value=folder.name
        )
    learner, seconds = watch_run(folder, config, plain=flags.plain, remote=flags.remote)
    finished = metrics.is_over(folder, config.total_steps)
    say(view.format_summary(config, metrics.read_last_row(folder) or learner, seconds, finished=finished))
    return 0


def watch_run(folder: Path, config: RunConfig, *, plain: bool, remote: bool) -> tuple[dict[str, Any], float]:
    """Show a run until it ends; returns the last page of its learner, and the seconds since its start."""
    began = time.monotonic()
    with (
        Gatherer(lambda: find_processes(folder, remote=remote)) as pages,
        contextlib.closing(make_screen(config, pages.snapshot, plain=plain, full=True)) as screen,
    ):
        misses, look_at = 0, 0.0
        while misses < MISSES:
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + LOOK_S
                misses = 0 if is_running(folder, remote=remote) else misses + 1
            snapshot = pages.snapshot()
            screen.update(stopping=any(service.page.get("state") == "draining" for service in snapshot.services))
            began = min(began, time.monotonic() - (number(snapshot.page("learner"), "uptime_s") or 0.0))
            time.sleep(TURN_S)
        return pages.snapshot().page("learner"), time.monotonic() - began
