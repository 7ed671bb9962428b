"""Starts a run under tmux, which takes the place of the supervisor of `beast train`: a window for each process.

python docs/examples/own_launcher.py --env CartPole-v1 --algo ppo --total_steps 20000 --name mine
tmux -L mine attach

What to start, and when to start it again, is in the plan. Each process ends by itself when the run is over, so nothing
here waits for the end; `beast watch mine` shows how far it is. After `tmux -L mine kill-server` the same command
continues the run.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from zerobeast import BeastError, ConfigError
from zerobeast.api.parent import parent_of
from zerobeast.common.config.load import Request
from zerobeast.plan.preparation import prepare_run
from zerobeast.plan.processes import Plan, ProcessSpec, Restart
from zerobeast.plan.resolution import RunFlags, resolve_run

#: for a shell: whether to start a process again after the exit code in $code, which is above 128 after a signal
RETRY_CODE = {
    Restart.NEVER: "false",
    Restart.KILLED: "[ $code -gt 128 ]",
    Restart.ALWAYS: f"[ $code != 0 ] && [ $code != {ConfigError.exit_code} ]",
}


def script(process: ProcessSpec, restarts: int, at_the_end: str) -> str:
    """What runs in the window of a process, which is started again so many times; without its learner a run is over."""
    command = f"{shlex.join(process.command)} >> {shlex.quote(str(process.log))} 2>&1"
    again = f"{RETRY_CODE[process.restart]} && [ $((tries += 1)) -le {restarts} ]"
    return f"while {command}; code=$?; {again}; do sleep 1; done; {at_the_end if process.role == 'learner' else ''}"


def main(argv: list[str]) -> str:
    """Start a run, under the flags of `beast train` that begin a run, but for --track; returns its name."""
    request = Request.of_flags(argv, os.environ, RunFlags)
    resolved = resolve_run(request, datetime.now().astimezone(), parent=parent_of(request))
    with prepare_run(resolved, print) as run:
        sockets = tempfile.mkdtemp(prefix="beast-", dir="/tmp")  # a short path, which no other user can enter
        plan = Plan(run.config, Path(sockets), os.environ)
        processes = plan.add_all()
    tmux, first = ("tmux", "-L", run.config.name), ("new-session", "-d", "-s", "run")
    at_the_end = f"rm -r {sockets}; [ $code = 0 ] || tmux kill-server"
    for process in reversed(processes):  # the learner last, as it may end them all
        where = first if process is processes[-1] else ("new-window", "-d", "-t", "run:")
        window = [*tmux, *where, "-n", process.name, "sh", "-c", script(process, plan.restarts, at_the_end)]
        subprocess.run(window, env={**process.environ, "TERM": "screen"}, check=True)
    return run.config.name


if __name__ == "__main__":
    try:
        print(f"tmux -L {main(sys.argv[1:])} attach")
    except BeastError as error:
        sys.exit(str(error))
