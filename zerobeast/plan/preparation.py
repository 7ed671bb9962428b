"""The folder of a run that is about to start: its settings, its keys and the weights that it begins with."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from zerobeast.common.config import confirmations, trust
from zerobeast.common.config.load import dump
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import requests, run_files
from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.health import status
from zerobeast.common.process.usage import allow_files
from zerobeast.common.settings import PEERS, RunConfig
from zerobeast.common.wire import EnvSpec
from zerobeast.plan import run_folder
from zerobeast.plan.processes import files_needed
from zerobeast.plan.resolution import ResolvedRun, Say
from zerobeast.plan.spaces import check_once, check_opponent, fetch_run_spec, pad_config


@dataclass
class PreparedRun:
    """A run that can be started."""

    config: RunConfig  #: as its folder has it
    lock: int  #: file descriptor of the folder's lock, which children inherit
    spec: EnvSpec | None  #: of its environments; None: others make them
    continues: bool  #: from a checkpoint
    notes: list[str]  #: what people may not expect
    keep: bool = True  #: whether a new folder stays; without steps, that of a run that was refused does not


@contextlib.contextmanager
def prepare_run(
    resolved: ResolvedRun[Any], say: Say, *, several: bool = False, later: bool = False
) -> Iterator[PreparedRun]:
    """Lock the folder of a run, and write there what its services need. A new run that is not started leaves nothing.

    Args:
      resolved: what to run.
      say: takes lines about it.
      several: its services are on several machines.
      later: it is not started now, as a job of a cluster; so its environments are not tried here, and what an earlier
        start has left, or one that goes on, stays.

    Raises:
      ConfigError: it cannot be started, for the reason it gives.
    """
    config, flags, saved, origins, parent = resolved
    spec, notes = (None, []) if later else (fetch_run_spec(config), check_once(config))
    config = pad_config(config)
    check_opponent(config, spec)
    if not later:
        allow_files(needed=files_needed(config), why="a service of this run")
    if flags.fresh and (aside := run_folder.move_folder_aside(config.folder, datetime.now().astimezone())):
        say(f"the earlier run {config.name} is now {aside}")
    config, remove = run_folder.make_folder(config, origins)
    with run_folder.lock_folder(config.folder) as lock, contextlib.ExitStack() as undo:
        undo.callback(remove)
        continues = run_folder.has_checkpoint(config.folder)
        if continues and saved is not None:
            run_folder.refuse_changes(saved, config)
            notes = [*filter(None, [run_folder.schedule_note(saved, config)]), *notes]
        config = secure(config, several=several)
        if parent is not None:
            parent.write(config.folder)
            say(f"{config.name} starts from the weights of {parent.run} after {parent.entry.agent_steps:,} agent steps")
        write_atomically(config.folder / run_files.CONFIG, dump(config), durable=True)
        confirmations.remember(config.folder, trust.decisive_values(config))
        if not later:
            requests.take_requests(config.folder)  # of an earlier start, as are these
            status.clear_statuses(config.folder / run_files.SERVICES)
            run_folder.name_latest(config.folder)
        run = PreparedRun(config, lock, spec, continues, notes)
        yield run
        if run.keep:
            undo.pop_all()


def secure(config: RunConfig, *, several: bool) -> RunConfig:
    """The same settings, with keys in the run's folder if peers that are not started with it reach it by tcp.

    Args:
      config: settings of the run.
      several: its services are on several machines.

    Raises:
      ConfigError: there are keys that nobody has named.
    """
    is_open = config.local.placement == "serve" and not config.security.insecure
    if config.security.keys or not (several or is_open):
        return config
    from zerobeast.common.transport import make_keys

    keys = config.folder.absolute() / run_files.KEYS
    if keys.exists():  # perhaps since the folder was made, by somebody else
        raise ConfigError(
            f"{keys} {PEERS.what}, which a folder alone may not decide: give --security.keys {keys} as well",
            path="security.keys",
            value=str(keys),
        )
    make_keys(keys)
    return config.model_copy(update={"security": config.security.model_copy(update={"keys": str(keys)})})
