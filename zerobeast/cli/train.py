"""`beast train`: settle what to run, start every service on this machine, show it, end it.

A run is its folder. A new name makes one; an existing name continues it with its saved settings, which new flags
override; --fresh moves the old folder aside and starts over.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, NamedTuple, TextIO, TypeVar

from zerobeast.common.config.describe import as_text, by_origin
from zerobeast.common.config.flags import split
from zerobeast.common.config.layers import from_tree, read_yaml
from zerobeast.common.config.load import Describe, Loaded, differences, dump, gather, settings_help
from zerobeast.common.config.trust import PEERS, flags_of
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.process.descriptors import allow_files
from zerobeast.common.settings.reading import readings
from zerobeast.common.settings.run import LATEST
from zerobeast.common.settings.section import Section, setting
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.text.suggest import did_you_mean
from zerobeast.launcher import run_folder, view
from zerobeast.launcher.child import Child
from zerobeast.launcher.curves import Curves
from zerobeast.launcher.fleet import Fleet, files_needed, service_command
from zerobeast.launcher.hosts import KEYS, Host, read_hosts
from zerobeast.launcher.pages import Gatherer
from zerobeast.launcher.placement import groups_of, placement_of
from zerobeast.launcher.private_folder import private_folder
from zerobeast.launcher.screen import make_screen
from zerobeast.launcher.spaces import spec_for, spec_of
from zerobeast.launcher.supervisor import Ending, Supervisor

HELP = """beast train [--name NAME] [--fresh] [--plain] [settings]
beast train [settings] --help   every setting and its value for this command line

  --name NAME   name of the run and its folder; a run that exists is resumed with its saved settings
  --fresh       start over; the earlier run of that name is moved aside, nothing is deleted
  --plain       a line every few seconds instead of the live view
  --hosts FILE  start workers on other machines by ssh; each line: host, number of workers, path of its Python.
                Needs --local.placement serve, and as --learner.endpoint an address of this machine that they can reach

exit codes: 0 trained to the end; 2 bad input; 75 a service could not be reached; 1 a service failed;
130 after Ctrl-C and 143 after SIGTERM, with a checkpoint; Ctrl-C again, a second later, ends everything at once
"""


class RunFlags(Section):
    """Flags of commands that begin or continue a run."""

    fresh: bool = setting(default=False, meaning="start over; the earlier run of that name is moved aside")


class TrainFlags(RunFlags):
    """Flags of the command itself."""

    plain: bool = setting(default=False, meaning="a line every few seconds instead of the live view")
    hosts: str = setting("", "file of other machines on which workers act, reached by ssh")


def main(argv: list[str]) -> int:
    settings = [flag for flag in argv if flag not in ("-h", "--help")]
    if len(settings) < len(argv):
        return _help(settings)
    if (evaluation := evaluation_of(argv)) is None:
        return train(argv, os.environ)
    from zerobeast.cli import evaluate

    return evaluate.main(evaluation)


def _help(argv: list[str]) -> int:
    try:
        loaded = gather(argv, os.environ, own=TrainFlags, describe=spec_of, groups=groups_of)
    except ConfigError as error:
        _say(f"beast train: {error}; below are the settings without these flags", sys.stderr)
        loaded = gather([], {})
    sys.stdout.write(f"{HELP}\n{settings_help(config=loaded.config, origins=loaded.origins)}\n")
    return 0


def evaluation_of(argv: list[str]) -> list[str] | None:
    """Arguments of `beast evaluate` for TorchBeast's `--mode test`, if given: the named or the newest run, greedily."""
    mistakes: list[str] = []
    flags = list(split(argv, mistakes))
    if ("mode", "test") not in [(flag.key, flag.text) for flag in flags]:
        return None
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    runs = [flag.text for flag in flags if flag.key in ("name", "xpid") and flag.text]
    others = [flag for flag in flags if flag.key not in ("mode", "name", "xpid")]
    more = [f"--{flag.name}" if flag.text is None else f"--{flag.name}={flag.text}" for flag in others]
    return [runs[-1] if runs else LATEST, "--greedy", *more]


def train(argv: list[str], environ: Mapping[str, str]) -> int:
    """Train under these settings.

    Args:
      argv: flags of the tree of settings and of `TrainFlags`.
      environ: the environment of this process.

    Returns:
      The exit code: see `zerobeast.launcher.supervisor`.

    Raises:
      ConfigError: nothing was started, for the reason it gives.
    """
    now = datetime.now().astimezone()
    config, flags, saved, origins = settle(argv, environ, now, own=TrainFlags)
    hosts = read_hosts(Path(flags.hosts)) if flags.hosts else []
    if hosts and config.local.placement != "serve":
        raise ConfigError(f"--hosts with local.placement {config.local.placement}: expected --local.placement serve")
    spec = spec_for(config)
    allow_files(needed=files_needed(config), why="a service of this run")
    if flags.fresh and (aside := run_folder.set_aside(config.folder, now)):
        _say(f"the earlier run {config.name} is now {aside}")
    with run_folder.claimed(config.folder) as lock, private_folder() as sockets:
        continues = run_folder.trained(config.folder)
        if continues and saved is not None:
            run_folder.refuse_changes(saved, config)
        config = protected(config, hosts)
        write_atomically(config.folder / run_files.CONFIG, dump(config))
        verb = "continuing" if continues else "training"
        _say(f"{verb} {config.name} ({config.env.id}, {config.section}) in {config.folder}")
        if continues and saved is not None and (note := run_folder.schedule_note(saved, config)):
            _say(note)
        for line in (*values(config, origins), *(readings(spec, config.net) if spec else ())):
            _say(line)
        run_folder.link_latest(config.folder)
        fleet = Fleet(config, sockets, environ, keep_open=(lock,))
        _say(str(fleet.placement))
        if fleet.placement.name == "serve":
            keys = f", with keys {config.security.keys}" if config.security.keys else ""
            _say(f"programs connect to broker {config.broker.endpoint} and learner {config.learner.endpoint}{keys}")
        return _run(fleet, hosts, plain=flags.plain)


Flags = TypeVar("Flags", bound=RunFlags)


class Settled(NamedTuple, Generic[Flags]):
    config: RunConfig
    flags: Flags
    saved: RunConfig | None  #: settings of the run that continues
    origins: Mapping[str, str]  #: path -> layer, of every setting that a layer gives


def settle(
    argv: list[str], environ: Mapping[str, str], now: datetime, *, own: type[Flags], describe: Describe = spec_of
) -> Settled[Flags]:
    """Read every layer: what is given now overrides what the run of that name was saved with.

    Raises:
      ConfigError: a line for every mistake.
    """
    given = gather(argv, environ, own=own, describe=describe, groups=groups_of)
    identity = {"name": given.config.name or run_folder.default_name(given.config, now), "root": given.config.root}
    file = given.config.model_copy(update=identity).folder / run_files.CONFIG
    if given.config.name and not file.exists() and "env.id" not in given.origins:
        place = file.parents[1].absolute()
        near = did_you_mean(file.parent.name, [folder.name for folder in place.glob("*/") if folder.name != LATEST])
        raise ConfigError(f"name {given.config.name!r}: no such run in {place}, and a new one needs --env{near}")
    before = ["--config", str(file)] if file.exists() and not given.own.fresh else []
    tree = read_yaml(file, f"file {file}") if before else {}
    if (referred := ":" in str(tree.get("algo"))) and "algo" in given.origins and given.config.section not in tree:
        raise ConfigError(run_folder.refusal("algo", given.config.name, tree["algo"], given.config.algo))
    loaded = gather([*before, *argv], environ, own=own, describe=describe, groups=groups_of)
    if referred:
        before.append(f"--algo={loaded.config.algo}")  # what the file refers to is imported by no name but this one
    if ":" in (torso := _torso(tree)):  # reading imports none
        before.append(f"--net.torso={torso}")
    saved = gather(before, {}, read_only=True).config if before else None
    _refuse_idle_tasks(loaded.config)
    for note in (*loaded.notes, *_ineffective(given)):
        _say(note)
    if saved and loaded.config.preset != saved.preset:
        _say(f"preset {loaded.config.preset} has no effect: a run that continues keeps what {file} says")
        identity["preset"] = saved.preset
    return Settled(loaded.config.model_copy(update=identity), loaded.own, saved, loaded.origins)


def _torso(tree: Mapping[str, Any]) -> str:
    """What a file says of `net.torso`, if it does."""
    return str({path: value for path, value, _ in from_tree(tree, "", [])}.get("net.torso", ""))


def _refuse_idle_tasks(config: RunConfig) -> None:
    groups, tasks = groups_of(config), len(config.env.tasks)
    if groups < tasks and placement_of(config).name != "serve":
        raise ConfigError(
            f"actor.env_groups {config.actor.env_groups}: {groups} env groups in all, "
            f"expected at least {tasks}: one for each environment of env.id"
        )


def values(config: RunConfig, origins: Mapping[str, str]) -> Iterator[str]:
    """A line for each layer that gives values, and one that says where to read the rest."""
    told = ("name", "root", "algo", "preset", "env.id")
    for origin, values in by_origin(config, origins).items():
        if texts := [f"{path} {as_text(value)}" for path, value in values.items() if path not in told]:
            yield f"{origin}: {', '.join(texts)}"
    chosen = f" was {origins['preset']}" if origins["preset"].startswith("chosen") else ""
    yield f"preset {config.preset}{chosen}; all other settings have their defaults: --help shows them"


def _ineffective(given: Loaded) -> Iterator[str]:
    """A sentence for every setting that is given in vain."""
    placement = placement_of(given.config)
    for path in differences(given.config):
        if path in placement.idle:
            yield f"{given.origins[path]} has no effect: the placement is {placement.name}"
        if path.endswith(".endpoint") and placement.name != "serve":
            yield f"{given.origins[path]} has no effect: `beast train` connects its services itself"
        if path == "learner.when_done":
            yield f"{given.origins[path]} has no effect: `beast train` ends when training is done"


def protected(config: RunConfig, hosts: Sequence[Host]) -> RunConfig:
    """The same settings, with keys if peers that this command does not start reach the run's services by tcp."""
    is_open = config.local.placement == "serve" and not config.security.insecure
    return with_keys(config) if not config.security.keys and (hosts or is_open) else config


def with_keys(config: RunConfig) -> RunConfig:
    """The same settings, with the run's own keys in its folder."""
    from zerobeast.common.transport import make_keys

    keys = config.folder.absolute() / KEYS
    if keys.exists():  # perhaps since the folder was made, by somebody else
        raise ConfigError(f"{keys} {PEERS}, which a folder may not decide alone: say --security.keys {keys} as well")
    make_keys(keys)
    return config.model_copy(update={"security": config.security.model_copy(update={"keys": str(keys)})})


def _run(fleet: Fleet, hosts: Sequence[Host], *, plain: bool) -> int:
    start, config, folder = time.monotonic(), fleet.config, fleet.config.folder.absolute()
    with contextlib.closing(Curves(folder)) as curves, Gatherer(fleet.add_all(), curves.update) as pages:
        fleet.add_hosts(hosts)
        if fleet.placement.name == "serial":
            ending = _run_here(fleet.children[0])
        else:
            with contextlib.closing(make_screen(config, pages.snapshot, plain=plain)) as screen:
                ending = Supervisor(fleet.children, lambda stopping: screen.update(stopping=stopping)).run()
        page = pages.snapshot().page("learner")
    final = run_folder.final_figures(config.folder)
    if ending.finished and (steps := int(final.get("agent_steps", 0))) < config.total_steps:
        ending = Ending(1, f"the learner was stopped from outside after {steps:,} agent steps")
    if ending.sentence:
        _say(f"beast train: {ending.sentence}", sys.stderr)
    if ending.finished or page.get("agent_steps"):
        # a page may be a second old; the last row is the end itself, unless the learner was killed
        newest = final if final.get("agent_steps", 0) >= page.get("agent_steps", 0) else page
        _conclude(config, view.summary(config, newest, time.monotonic() - start, finished=ending.finished), ending)
    elif not ending.sentence:
        _say(f"{config.name}: stopped before its first update")
    return ending.code


def _run_here(child: Child) -> Ending:
    """Do in this process what the child would do, so that a debugger sees all of it."""
    from zerobeast.services.worker.hosting import run_serial

    with contextlib.chdir(Path.cwd()):  # whatever folder its environments leave it in
        code = run_serial(child.spec.command[len(service_command(child.spec.role)) :], {})
    return Ending(code, finished=not code)


def _conclude(config: RunConfig, summary: str, ending: Ending) -> None:
    """Say what was trained and what can be done next."""
    _say(summary)
    if not run_folder.trained(config.folder):
        _say("there is no checkpoint yet: the learner ended before its first")
        return
    same = "" if config.root == RunConfig().root else f" --root {shlex.quote(config.root)}"
    same += "".join(f" {shlex.quote(word)}" for word in flags_of(config))
    more = f" --total_steps {2 * config.total_steps}" if ending.finished else ""
    _say(f"checkpoint: {config.folder / run_files.CHECKPOINT}")
    if config.local.placement != "serve":  # then the environments are elsewhere
        _say(f"evaluate:   {beast()} evaluate {config.name}{same}")
    _say(f"continue:   {beast()} train --name {config.name}{same}{more}")


def beast() -> str:
    """How to call this command again: as it was called, if a shell does not find it by its name."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "beast" and shutil.which("beast") is None else "beast"


def _say(text: str, file: TextIO | None = None) -> None:
    with contextlib.suppress(OSError):
        print(text, file=file, flush=True)
