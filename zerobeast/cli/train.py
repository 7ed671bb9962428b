"""Train: start all services on this machine, show the progress of the run, and stop the services at its end.

  beast train [--name NAME] [--fresh] [--plain] [settings]
  beast train --from RUN [--name NAME] [settings]
  beast train --preset torchbeast [TorchBeast's flags] [settings]
  beast train [settings] --dry_run > FILE    write the settings of the run to a file for --config
  beast train [settings] --help   all settings with their values for this command line; --help all: of all algorithms

An existing run is resumed with its saved settings. With --from, a new run starts from the weights and settings of
another run; flags override these settings, and the count of agent steps starts at 0. Workers on --hosts need
--local.placement serve, and a --learner.endpoint with an address of this machine that they can reach.

Exit code: 0 trained to the end; 2 bad input; 75 a service could not be reached; 1 a service failed; 130 after Ctrl-C
and 143 after SIGTERM, both with a checkpoint. Another Ctrl-C at least a second later kills all services at once.
"""

import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from zerobeast.api.parent import parent_of
from zerobeast.common.config import torchbeast
from zerobeast.common.config.load import LoadedSettings, Request, dump, resolve, settings_help
from zerobeast.common.errors import BeastError, ConfigError
from zerobeast.common.files import metrics, run_files
from zerobeast.common.process.terminal import say, write
from zerobeast.common.settings import REACH, RunConfig, setting
from zerobeast.launcher import view
from zerobeast.launcher.child import Child
from zerobeast.launcher.curves import Curves
from zerobeast.launcher.fleet import Fleet
from zerobeast.launcher.hosts import Host, read_hosts
from zerobeast.launcher.pages import Gatherer
from zerobeast.launcher.screen import make_screen
from zerobeast.launcher.start import correct_ending, prepare_fleet
from zerobeast.launcher.supervisor import Ending
from zerobeast.launcher.tracker import run_tracker
from zerobeast.plan import run_folder
from zerobeast.plan.processes import service_command
from zerobeast.plan.resolution import ResolvedRun, RunFlags, resolve_locally, resolve_run
from zerobeast.plan.spaces import fetch_run_spec, pad_config


class TrainFlags(RunFlags):
    """Flags of the command itself."""

    dry_run: bool = setting(default=False, meaning="print the settings of the run without starting it")
    plain: bool = setting(default=False, meaning="print a line every few seconds instead of the live view")
    hosts: str = setting(
        "", "file of ssh machines for workers, one per line: host, number of workers, Python", decides=REACH
    )


def main(argv: list[str]) -> int:
    argv = torchbeast.translate_flags(argv, partial(say, file=sys.stderr))
    return 0 if show_help("beast train", __doc__, argv, TrainFlags) else run_train(argv, os.environ)


def show_help(command: str, text: str | None, argv: list[str], own: type[RunFlags]) -> bool:
    """Print the help of a command that begins runs, with the settings that its flags lead to, if one of them is --help;
    returns whether one is.
    """
    at = next((index for index, flag in enumerate(argv) if flag in ("-h", "--help", "--help=all")), None)
    if at is None:
        return False
    behind = argv[at + 1 : at + 2] == ["all"]
    of_all, flags = behind or argv[at] == "--help=all", argv[:at] + argv[at + 1 + behind :]
    loaded: LoadedSettings | ResolvedRun[Any]
    try:
        request = Request.of_flags(flags, os.environ, own)
        given = resolve_locally(request, partial=True)
        if given.own.from_run or run_files.is_run(given.config.folder):
            now, silent = datetime.now().astimezone(), lambda _: None
            loaded = resolve_run(request, now, say=silent, parent=parent_of(request))
        else:
            loaded = resolve_locally(request)
    except BeastError as error:
        say(f"{command}: {error}; below are the settings without these flags", sys.stderr)
        loaded = resolve(Request())
    write(f"{text}\n{settings_help(own, loaded.config, loaded.origins, of_all=of_all)}")
    return True


def run_train(argv: list[str], environ: Mapping[str, str]) -> int:
    """Train under these settings.

    Args:
      argv: flags of the tree of settings and of `TrainFlags`.
      environ: the environment of this process.

    Returns:
      The exit code: see `zerobeast.launcher.supervisor`.

    Raises:
      ConfigError: nothing was started, for the reason it gives.
    """
    request = Request.of_flags(argv, environ, TrainFlags)
    now, remark = datetime.now().astimezone(), partial(say, file=sys.stderr if request.value("dry_run") else None)
    resolved = resolve_run(request, now, say=remark, parent=parent_of(request))
    config, flags = resolved.config, resolved.flags
    if flags.dry_run:
        fetch_run_spec(config)
        write(dump(pad_config(config)))
        return 0
    hosts = read_hosts(Path(flags.hosts)) if flags.hosts else []
    if hosts and config.local.placement != "serve":
        sentence = f"--hosts with local.placement {config.local.placement}: expected --local.placement serve"
        raise ConfigError(sentence, path="local.placement", value=config.local.placement, beside=["hosts"])
    with (
        prepare_fleet(resolved, environ, hosts=hosts) as fleet,
        run_tracker(fleet.config, flags.track, flags.track_project, environ) as trackers,
    ):
        return _supervise(fleet, hosts, trackers, plain=flags.plain)


def _supervise(fleet: Fleet, hosts: Sequence[Host], trackers: Sequence[Child], *, plain: bool) -> int:
    start, config, folder = time.monotonic(), fleet.config, fleet.config.folder.absolute()
    before = metrics.read_last_row(folder).get("agent_steps", 0)
    shown = [*fleet.add_all(), *trackers]
    with contextlib.closing(Curves(folder)) as curves, Gatherer(lambda: shown, curves.update) as pages:
        fleet.add_hosts(hosts)
        if config.local.placement == "serial" and len(fleet.children) == 1:
            ending = _run_here(fleet.children[0])
        else:
            with contextlib.closing(make_screen(config, pages.snapshot, plain=plain)) as screen:
                ending = fleet.supervisor(lambda stopping: screen.update(stopping=stopping)).run()
        page = pages.snapshot().page("learner")
    ending, final = correct_ending(ending, config), metrics.read_last_row(config.folder)
    if ending.sentence:
        say(f"beast train: {ending.sentence}", sys.stderr)
    if not config.folder.exists():  # somebody has removed it, and the sentence says so
        return ending.code
    # a page may be a second old; the last row is the end itself, unless the learner was killed
    newest = final if final.get("agent_steps", 0) >= page.get("agent_steps", 0) else page
    if ending.finished or newest.get("agent_steps", 0) > (before if ending.sentence else 0):
        _conclude(
            config, view.format_summary(config, newest, time.monotonic() - start, finished=ending.finished), ending
        )
    elif not ending.sentence:
        say(f"{config.name}: stopped before its first update")
    return ending.code


def _run_here(child: Child) -> Ending:
    """Do in this process what the child would do, so that a debugger reaches all of it."""
    from zerobeast.common.service import entry

    with contextlib.chdir(Path.cwd()):  # whatever folder its environments leave it in
        code = entry.main("serial", child.spec.command[len(service_command(child.spec.role)) :], {})
    if code == ConfigError.exit_code:  # it has printed the sentence, and the run has not begun
        raise SystemExit(code)
    return Ending(code, finished=not code)


def _conclude(config: RunConfig, summary: str, ending: Ending) -> None:
    """Print what was trained and what can be done next."""
    say(summary)
    if lost := metrics.describe_lost_episodes(config.folder):
        say(lost)
    if not run_folder.has_checkpoint(config.folder):
        say("there is no checkpoint yet: the learner ended before its first")
        return
    same = "" if config.root == RunConfig().root else f" --root {shlex.quote(config.root)}"
    more = f" --total_steps {2 * config.total_steps}" if ending.finished else ""
    if (config.folder / run_files.REACHED_FILE).exists():
        more = f" --stop_at_return R, with R above {config.stop_at_return:g}"
    say(f"checkpoint: {config.folder / run_files.CHECKPOINT}")
    if waiting := len(run_files.list_checkpoints(config.folder, run_files.TO_EVALUATE)):
        say(f"waiting:    {waiting} policies, which are evaluated once the run continues")
    if config.local.placement != "serve":  # then the environments are elsewhere
        say(f"evaluate:   {command_name()} evaluate {config.name}{same}")
    say(f"continue:   {command_name()} train --name {config.name}{same}{more}")


def command_name() -> str:
    """How to call this command again: as it was called, if a shell does not find it by its name."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "beast" and shutil.which("beast") is None else "beast"
