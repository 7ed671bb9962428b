"""`beast train`: settle what to run, start every service on this machine, show it, end it.

A run is its folder. A name that is new makes one; a name that exists continues it with its saved settings, under
whatever flags are new; --fresh moves the old folder aside and starts over.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from common.config.load import dump, gather, load
from common.config.setting import Section, setting
from common.config.tree import RunConfig
from deploy.local import folder as run_folder
from deploy.local import view
from deploy.local.fleet import stages
from deploy.local.pages import Gatherer, Snapshot
from deploy.local.screen import make_screen
from deploy.local.supervisor import Ending, Supervisor
from deploy.local.view import RunTitle


class TrainFlags(Section):
    """Flags of the command itself."""

    fresh: bool = setting(default=False, meaning="start over; the earlier run of that name is moved aside")
    plain: bool = setting(default=False, meaning="a line every few seconds instead of the live view")


def train(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run `beast train`.

    Args:
      argv: flags of the tree of settings, and those of `TrainFlags`.
      environ: of this process.

    Returns:
      The exit code: see `deploy.local.supervisor`.

    Raises:
      ConfigError: nothing was started, for the reason it gives.
    """
    now = datetime.now().astimezone()
    config, flags, saved = settle(argv, environ, now)
    if flags.fresh and (aside := run_folder.set_aside(config.folder, now)):
        _say(f"the earlier run {config.name} is now {aside}")
    with run_folder.claimed(config.folder) as lock, run_folder.private_folder() as sockets:
        continues = (config.folder / run_folder.CHECKPOINT).exists()
        if continues and saved is not None:
            run_folder.refuse_changes(saved, config)
        run_folder.write_atomically(config.folder / run_folder.CONFIG, dump(config))
        verb = "continuing" if continues else "training"
        _say(f"{verb} {config.name} ({config.env.id}, {config.algo}) in {config.folder}")
        return _run(config, sockets, lock, environ, plain=flags.plain)


def settle(
    argv: list[str], environ: Mapping[str, str], now: datetime
) -> tuple[RunConfig, TrainFlags, RunConfig | None]:
    """Read every layer: what is given now, over what the run of that name was saved with.

    Returns:
      The settings to run under, the command's own flags, and the saved settings where the run continues.

    Raises:
      ConfigError: a line for every mistake.
    """
    given = gather(argv, environ, own=TrainFlags)
    identity = {"name": given.config.name or run_folder.default_name(given.config, now), "root": given.config.root}
    file = given.config.model_copy(update=identity).folder / run_folder.CONFIG
    layers, saved = argv, None
    if file.exists() and not given.own.fresh:
        layers, saved = ["--config", str(file), *argv], load(["--config", str(file)], {})
    loaded = gather(layers, environ, own=TrainFlags)
    for note in loaded.notes:
        _say(note)
    if saved and any(flag.partition("=")[0] == "--preset" for flag in argv):
        _say(f"--preset has no effect: a run that continues keeps what {file} says")
    return loaded.config.model_copy(update=identity), loaded.own, saved


def _run(config: RunConfig, sockets: Path, lock: int, environ: Mapping[str, str], *, plain: bool) -> int:
    run = RunTitle(config.name, config.env.id, config.algo, config.total_steps)
    start = time.monotonic()
    fleet = stages(config, sockets, lock, environ)
    with Gatherer([child for stage in fleet for child in stage.children]) as pages:
        screen = make_screen(run, pages.snapshot, plain=plain)
        try:
            ending = Supervisor(fleet, lambda stopping: screen.update(stopping=stopping)).run()
        finally:
            screen.close()
        last = pages.snapshot()
    if ending.finished and (steps := run_folder.trained_steps(config.folder)) < config.total_steps:
        ending = Ending(1, f"the learner was stopped from outside after {steps:,} agent steps")
    _conclude(config, run, ending, last, time.monotonic() - start)
    return ending.code


def _conclude(config: RunConfig, run: RunTitle, ending: Ending, last: Snapshot, seconds: float) -> None:
    """Say how it ended and, where anything was trained, what can be done next."""
    if ending.sentence:
        sys.stderr.write(f"beast train: {ending.sentence}\n")
    learner, checkpoint = last.page("learner"), config.folder / run_folder.CHECKPOINT
    if not ending.finished and not learner.get("agent_steps"):
        return
    _say(view.summary(run, learner, seconds, finished=ending.finished))
    if not checkpoint.exists():
        _say("there is no checkpoint yet: the learner ended before its first")
        return
    root = "" if config.root == RunConfig().root else f" --root {config.root}"
    _say(f"checkpoint: {checkpoint}")
    _say(f"evaluate:   beast evaluate {config.name}{root}")
    _say(f"continue:   beast train --name {config.name}{root}")


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
