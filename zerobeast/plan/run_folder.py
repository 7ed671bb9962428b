"""The folder of a run: its name, the lock that keeps a second launcher out, and what a resumed run may not change.

The lock is inherited by every child. It is therefore held until the last service has ended, even if the launcher
itself was killed, and two learners never write into one folder.
"""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from zerobeast.common.config.settings_table import is_bound, table_of, topic_of, value_at
from zerobeast.common.errors import ConfigError, raise_as
from zerobeast.common.files import metrics, run_files
from zerobeast.common.files.atomic import explain_os_errors, write_atomically
from zerobeast.common.files.links_outside import refuse_links_outside
from zerobeast.common.files.regular_files import open_descriptor, open_regular
from zerobeast.common.settings import RunConfig
from zerobeast.common.text import without_folders

HANDOVER_S = 10.0  #: how long services outlive a launcher that was killed
RETRY_S = 0.1
MAX_NAME, MAX_NUMBER = 100, 999
CHOSEN_ORIGIN = "chosen"  #: the origin of what nobody has given


def default_name(config: RunConfig, now: datetime) -> str:
    """<env>-<algorithm>-<date>-<time>, such as Pong-v5-impala-20260131-235959, for a run without a name."""
    suffix = f"-{config.section}-{now:%Y%m%d-%H%M%S}"
    env_id = re.sub(r"\(([^,;()]*)[^()]*\)", r"-\1", without_folders(config.env.id))  # of a mix, law and first part
    env = re.sub(r"[^A-Za-z0-9._]+", "-", env_id).strip("-._") or "run"
    return _free_folder(
        Path(config.root).expanduser() / (env[: MAX_NAME - len(f"{suffix}-{MAX_NUMBER}")] + suffix)
    ).name


def _free_folder(folder: Path) -> Path:
    """This folder or, if it exists, one with a number after its name that does not."""
    return next(path for path in _candidate_folders(folder) if not path.exists())


def _candidate_folders(folder: Path) -> Iterator[Path]:
    yield folder
    yield from (folder.with_name(f"{folder.name}-{number}") for number in range(2, MAX_NUMBER + 1))


def make_folder(config: RunConfig, origins: Mapping[str, str]) -> tuple[RunConfig, Callable[[], None]]:
    """Make the folder of a run, unless there is one.

    Args:
      config: of the run.
      origins: where its settings are from. If nobody has named it, and another run that began in the same second has
        this folder, its name gets a number.

    Returns:
      The settings, and what removes the folder again if it was made now and nothing was trained.

    Raises:
      ConfigError: it cannot be made.
    """
    with explain_os_errors(f"run folder {config.folder} cannot be written"):
        config.folder.parent.mkdir(parents=True, exist_ok=True)
        for folder in (
            _candidate_folders(config.folder)
            if origins.get("name", CHOSEN_ORIGIN) == CHOSEN_ORIGIN
            else (config.folder,)
        ):
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                undo = partial(_remove, folder, run_files.expand_path(folder.with_name(run_files.LATEST_FILE)))
                return config.model_copy(update={"name": folder.name}), undo
    return config, lambda: None


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[int]:
    """Make the folder if need be and hold its lock.

    Yields:
      The lock's file descriptor, for children to inherit.

    Raises:
      ConfigError: the folder cannot be written, leads elsewhere or is not a run's, or another launcher runs there.
    """
    with explain_os_errors(f"run folder {folder} cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        run_files.refuse_other(folder)
        refuse_links_outside(folder)
        for part in (run_files.LOGS, run_files.SERVICES):
            (folder / part).mkdir(exist_ok=True)
        descriptor = open_descriptor(folder / run_files.LAUNCHER_LOCK, os.O_RDWR | os.O_CREAT)
    try:
        _wait_for_lock(descriptor, folder)
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield descriptor
    finally:
        os.close(descriptor)


def refuse_foreign(folder: Path) -> None:
    """Raise ConfigError if this is the folder of another user, to whom its files and what they say belong."""
    if os.path.exists(folder) and (owner := folder.stat().st_uid) != os.geteuid():
        raise ConfigError(
            f"run folder {folder} belongs to another user ({owner}): give --trust_folder too",
            path="trust_folder",
            value=False,
        )


def _wait_for_lock(descriptor: int, folder: Path) -> None:
    deadline = time.monotonic() + HANDOVER_S
    while True:
        try:
            return run_files.lock(descriptor, folder)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0)
        if holder.isdigit() and len(holder) < 10 and psutil.pid_exists(int(holder)):  # larger ones are no process ids
            raise ConfigError(
                f"run {folder.name!r} is already running here (process {int(holder)}); give another --name",
                path="name",
                value=folder.name,
            )
        if time.monotonic() >= deadline:
            sentence = f"run {folder.name!r} still has services of an earlier start running; end them first"
            raise ConfigError(sentence, path="name", value=folder.name)
        time.sleep(RETRY_S)


def move_folder_aside(folder: Path, now: datetime) -> Path | None:
    """Rename a run's folder out of the way, so that a new run can take its name. Nothing is deleted.

    Returns:
      Where it is now, or None if there was nothing.

    Raises:
      ConfigError: a launcher or a learner runs there, or the folder cannot be renamed.
    """
    if not folder.exists():
        return None
    target = _free_folder(folder.with_name(f"{folder.name}.old-{now:%Y%m%d-%H%M%S}"))
    with lock_folder(folder), explain_os_errors(f"run folder {folder} cannot be moved aside"):
        _demand_no_learner(folder)
        folder.rename(target)
    return target


def _demand_no_learner(folder: Path) -> None:
    """Raise ConfigError if a learner that no launcher started trains the run: it would go on writing to this path."""
    with contextlib.suppress(FileNotFoundError), open_regular(folder / run_files.LEARNER_LOCK, "r+b") as file:
        taken = f"run {folder.name!r} has a learner that trains it now; give another --name"
        run_files.lock(file.fileno(), folder, refusal=taken)


def name_latest(folder: Path) -> None:
    """Write the run's name to the file `latest` beside its folder, or in place of a link of that name."""
    with contextlib.suppress(ConfigError):  # something else has that name
        write_atomically(folder.with_name(run_files.LATEST_FILE), f"{folder.name}\n", durable=False)


def _remove(folder: Path, latest: Path) -> None:
    """Remove the folder of a new run that has not trained; `latest` is the run before it."""
    if not has_checkpoint(folder) and not metrics.read_last_row(folder):
        shutil.rmtree(folder, ignore_errors=True)
        if run_files.is_run(latest):
            name_latest(latest)
        else:
            folder.with_name(run_files.LATEST_FILE).unlink(missing_ok=True)


def refuse_changes(saved: RunConfig, wanted: RunConfig) -> None:
    """Refuse to continue a checkpoint under settings that it does not fit, or to fewer steps than it has.

    Raises:
      ConfigError: a line for every such setting, with both values and the remedies.
    """
    if saved.section != wanted.section:
        bound = ["algo"]
    else:
        now = table_of(wanted)  # if a part of it is another one, that is refused as well
        bound = [path for path in table_of(saved) if path in now and is_bound(path)]
        with raise_as(ConfigError, f"algo {saved.section}: bound"):
            own = saved.algorithm.bound(wanted.algorithm)
        bound += [f"{saved.section}{path}" if path.startswith(".") else path for path in own]
        if saved.algorithm.replays and saved.sync.parsed.measured != wanted.sync.parsed.measured:
            bound.append("sync.rule")  # it decides what is in each row of the replay's file
    changes = [(path, value_at(saved, path), value_at(wanted, path)) for path in bound]
    refused = [refusal(path, wanted.name, before, after) for path, before, after in changes if before != after]
    done, learned = int(metrics.read_last_row(wanted.folder).get("agent_steps", 0)), [*table_of(wanted)] * (not refused)
    others = [path for path in learned if not topic_of(path) and value_at(saved, path) != value_at(wanted, path)]
    if done > wanted.total_steps or (done == wanted.total_steps and set(others) - {"total_steps"}):
        steps = f"{done:,} agent steps of {wanted.total_steps:,}: nothing is left to train"
        sentence = f"total_steps: run {wanted.name!r} has done {steps}; give more than {done}"
        refused.append(ConfigError(sentence, path="total_steps", value=wanted.total_steps))
    if refused:
        raise ConfigError.of(refused)


def refusal(path: str, run: str, before: Any, after: Any) -> ConfigError:
    """Why a run cannot continue with another value of a setting, and the remedies."""
    why = f"was trained with {before!r} and cannot continue with {after!r}"
    sentence = f"{path}: run {run!r} {why}; give another --name, or --fresh to start over"
    return ConfigError(sentence, path=path, value=after, expected=f"{before!r}")


def schedule_note(saved: RunConfig, wanted: RunConfig) -> str:
    """A sentence if the learning rate of a run that continues jumps, or is not the one that was asked for."""
    before = saved.algorithm, saved.total_steps, resume_step(wanted.folder)
    with raise_as(ConfigError, f"algo {wanted.section}: jump"):
        return wanted.algorithm.jump(wanted.section, wanted, *before)


def has_checkpoint(folder: Path) -> bool:
    """Whether the run has a checkpoint, whole or damaged."""
    return any((folder / name).exists() for name in (run_files.CHECKPOINT, run_files.PREVIOUS_CHECKPOINT))


def resume_step(folder: Path) -> int:
    """Agent steps after which the run continues, at least 1; 0 without a checkpoint."""
    return max(1, int(metrics.read_last_row(folder).get("agent_steps", 0))) if has_checkpoint(folder) else 0
