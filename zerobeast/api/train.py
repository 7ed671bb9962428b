"""Training from a script or a notebook: `train` waits for the end, `start` does not."""

from __future__ import annotations

import logging
import os
from datetime import datetime
from typing import Any

from zerobeast.api.parent import parent_of
from zerobeast.api.progress import Progress
from zerobeast.api.run import TURN_S, CallbacksArgument, Run, list_callbacks
from zerobeast.api.run_thread import StartedRun, log_remark
from zerobeast.common.config.plain_values import add_env
from zerobeast.common.config.request import Request
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import metrics
from zerobeast.common.plugins import refuse_imported, reread
from zerobeast.common.process.terminal import say
from zerobeast.plan.resolution import RunFlags, resolve_run

log = logging.getLogger(__name__)


def train(
    env: Any = None,
    /,
    algo: Any = None,
    total_steps: int | None = None,
    *,
    name: str | None = None,
    from_run: str | os.PathLike[str] | None = None,
    callbacks: CallbacksArgument = None,
    progress: bool = True,
    **settings: Any,
) -> Run:
    """Train a run to its end, in processes of this machine.

    Ctrl-C ends the run with a checkpoint and is raised again: a line says how to get at the run (`zerobeast.Run`) and
    how to continue it.

    Args:
      env: an id, `module:Name`, or a class or function that makes one environment, wrapped or not: at the top level of
        a module, or of the script itself if that starts runs below `if __name__ == "__main__":` alone. Its arguments
        are `env_kwargs={"size": 5}`, or those of a `functools.partial`. Other settings of its section are
        `env={"action_mask": "mask"}`.
      algo: a name such as "ppo", `module:NAME`, or an `AlgorithmSpec` at the top level of a module.
      total_steps: agent steps of the run in all.
      name: of the run and its folder; None: made of environment, algorithm and time. A run that exists goes on.
      from_run: a run whose weights and settings a new one begins with, as for `load`: "x", "x:50000" or "x:best". What
        is given here changes its settings, and its steps do not count.
      callbacks: `Callbacks`, a function of the run and each new row of metrics.csv, or a list of these; called while
        this waits. What they raise ends the run, with a checkpoint.
      progress: whether to print a line of progress, below the name and the folder of the run.
      settings: those of `beast train`, whose --help lists them, by section, such as `net={"hidden_size": 64}`, or by
        path, `**{"net.hidden_size": 64}`. Of no section: `seed=3`; `root="folder"` of all runs, by default `BEAST_ROOT`
        or `runs`; `deterministic=True`; `stop_at_return=475`; `preset="classic-ppo"`; and its flags `fresh=True`, which
        moves the run of that name aside, and `track="wandb"`, which hands the run to an experiment tracker.

    Returns:
      The run, which has ended.

    Raises:
      ConfigError: nothing was started, for the reason it gives.
      BeastError: a service failed.

    Examples:
      >>> import zerobeast as zb
      >>> run = zb.train("CartPole-v1", "ppo", total_steps=2_000, name="cart", progress=False)
      >>> run.status().state, run.status().agent_steps
      ('done', 2000)
    """
    with start(env, algo, total_steps, name=name, from_run=from_run, callbacks=callbacks, **settings) as run:
        heading = f"{run.name} ({run.config.env.id}, {run.config.section}) in {run.folder}"
        try:
            with Progress(heading, run.status, wanted=progress) as shown:
                while not run.wait(TURN_S):
                    shown.update()
        except KeyboardInterrupt:
            run.stop()
            place = f"{run.name!r}" + (f", root={str(settings['root'])!r}" if "root" in settings else "")
            after = f"zb.Run({place}) opens the results so far, zb.train(name={place}) continues training"
            say(f"interrupted after {run.status().agent_steps:,} agent steps: {after}")
            raise
    if progress and (lost := metrics.describe_lost_episodes(run.folder)):
        say(lost)
    return run


def start(
    env: Any = None,
    /,
    algo: Any = None,
    total_steps: int | None = None,
    *,
    name: str | None = None,
    from_run: str | os.PathLike[str] | None = None,
    callbacks: CallbacksArgument = None,
    **settings: Any,
) -> Run:
    """Start a run and return at once. It ends when this process does; `with zerobeast.start(...) as run:` stops it.

    Args:
      callbacks: as for `train`; called while `run.wait` waits.
      env, algo, total_steps, name, from_run, settings: as for `train`.

    Raises:
      ConfigError: nothing was started, for the reason it gives.

    Examples:
      >>> import zerobeast as zb
      >>> with zb.start("CartPole-v1", "ppo", total_steps=2_000, name="short") as run:
      ...     run.wait(timeout=60)
      True
    """
    refuse_imported("starts a run")
    told = [*list_callbacks(callbacks)]
    own = {"algo": algo, "total_steps": total_steps, "name": name, "from_run": from_run}
    reread()
    request = Request.of_values({**add_env(env, settings), **own}, os.environ, RunFlags)
    now = datetime.now().astimezone()
    resolved = resolve_run(request, now, say=log_remark, parent=parent_of(request))
    if "env.id" not in resolved.origins:
        raise ConfigError("env is missing: expected an id, a class or a function, or the name= of a run to continue")
    return StartedRun(resolved, os.environ, told)
