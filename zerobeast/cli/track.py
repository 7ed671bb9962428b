"""Send the metrics and videos of a run to an experiment tracker. Data that were already sent from this folder are
not sent again, unless this process was killed in between. Trackers have their own environment variables, such as
WANDB_MODE=offline. Needs the extra zerobeast[trackio] or zerobeast[wandb].
"""

import os
import signal
import threading

from zerobeast import commands
from zerobeast.common.files import run_files
from zerobeast.common.process.logs import log_to_stderr
from zerobeast.common.process.signals import handle_signals
from zerobeast.common.process.terminal import write
from zerobeast.tracking.process import Follower, end_with, follow_run, hold_lock
from zerobeast.tracking.sinks import PROJECT, load_tracker


def main(argv: list[str]) -> int:
    """Run `beast track`. Raises BeastError if there is no such run or tracker, or not everything could be written."""
    parser = commands.make_parser("beast track", __doc__)
    parser.add_argument("run", metavar="RUN", help="name of a run, or its folder")
    parser.add_argument("--to", required=True, help="trackio, wandb, or your own module:Class")
    parser.add_argument("--project", default=PROJECT, help="project of the run in the tracker; default %(default)s")
    parser.add_argument(
        "--follow", action="store_true", help="keep sending until Ctrl-C, as `beast train --track` does"
    )
    commands.add_root(parser)
    parser.add_argument(
        "--parent", type=int, default=0, help="exit when this process is no longer the parent; 0: never"
    )
    own = parser.parse_args(argv)
    folder, make, asked = run_files.find_run(own.run, own.root), load_tracker(own.to), list[int]()

    def has_ended() -> bool:
        return not own.follow or bool(asked) or (own.parent > 0 and os.getppid() != own.parent)

    def ask(number: int, _frame: object) -> None:
        if asked:  # the tracker's code may hang
            raise KeyboardInterrupt
        asked.append(number)

    log_to_stderr("tracker")
    if own.parent:
        threading.Thread(target=end_with, args=(own.parent,), daemon=True).start()
    with hold_lock(folder, own.to), handle_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), ask):
        follow_run(follower := Follower(folder, own.to, make, own.project), has_ended)
    write(f"{folder.name}: {follower.count} points to {own.to}, project {own.project}")
    return 0
