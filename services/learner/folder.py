"""What a run keeps in its folder while it is trained: settings, metrics, checkpoints. The first rank alone keeps it.

A folder belongs to one learner at a time: two would overwrite each other's checkpoints. A lock keeps a second one out.
On a file system without locks a second one takes the folder over: the file of the lock has the number of the newest
start, and a learner that finds another than its own there writes no more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from zerobeast.common.config import live
from zerobeast.common.config.describe import as_yaml
from zerobeast.common.config.layers import leaves, read_yaml
from zerobeast.common.config.load import dump
from zerobeast.common.config.settings_table import nest
from zerobeast.common.errors import CheckpointError, ConfigError, DiskError
from zerobeast.common.files import evaluations, requests, run_files
from zerobeast.common.files.atomic import explain_os_errors, write_atomically
from zerobeast.common.files.evaluation_queue import EvaluationQueue
from zerobeast.common.files.links_outside import refuse_links_outside
from zerobeast.common.files.regular_files import open_descriptor, open_regular
from zerobeast.common.service.computation import Computation
from zerobeast.common.settings import RunConfig
from zerobeast.services.learner.checkpoint import Checkpoints
from zerobeast.services.learner.checkpoint_links import CheckpointLinks
from zerobeast.services.learner.recorder import Record, Recorder
from zerobeast.services.learner.training_run import TrainingRun

log = logging.getLogger(__name__)

LONG_S = 5.0  #: an update that takes longer is saved, so that the learner can end within the next one and lose no more
#: the page before anything is written, and of ranks that write nothing
UNWRITTEN_PAGE: dict[str, Any] = {"checkpoint_age_s": None, "write_errors": 0, "unsaved": "", "evaluations_waiting": 0}


@contextlib.contextmanager
def claim(folder: Path) -> Iterator[Callable[[], None]]:
    """Make the folder if it is missing and lock it; the kernel releases the lock however the process ends.

    Yields:
      A check to call before each write: it raises ConfigError if a later start has taken the folder.

    Raises:
      ConfigError: it cannot be written, leads elsewhere or is not the folder of a run, or another process holds it.
    """
    start = secrets.token_bytes(8)
    with contextlib.ExitStack() as stack:
        with explain_os_errors(f"{folder}: the run folder cannot be written"):
            folder.mkdir(parents=True, exist_ok=True)
            run_files.refuse_other(folder)
            refuse_links_outside(folder)
            handle = open_descriptor(folder / run_files.LEARNER_LOCK, os.O_CREAT | os.O_RDWR)
            stack.callback(os.close, handle)
            run_files.lock(handle, folder, refusal=f"{folder}: another process trains this run now: use another name")
            os.pwrite(handle, start, 0)
        with contextlib.suppress(OSError):
            (folder / run_files.CHECKPOINT_DRAFT).unlink()  # left by a learner that was killed while it wrote
        yield lambda: _check_owner(start, folder)


def _check_owner(start: bytes, folder: Path) -> None:
    try:
        with open_regular(folder / run_files.LEARNER_LOCK) as file:
            newest = file.read(len(start))
    except FileNotFoundError as error:
        sentence = f"{folder} was moved or removed while it was in use: nothing more is saved there"
        raise ConfigError(sentence, path=str(folder)) from error
    except OSError:
        return  # what is to be written now fails as well, or the next check finds out
    if newest != start:
        raise ConfigError(
            f"{folder}: another learner has taken over this run: this one stops writing", path=str(folder)
        )


def link_store(config: RunConfig) -> None:
    """With `learner.store`, make the run's store a link to a folder of its own there, which it keeps if it is renamed.

    On each machine any rank does: the folder of a run may be one for all machines, or one of each.

    Raises:
      ConfigError: it cannot be made.
    """
    if not config.learner.store:
        return
    store, place = config.store, Path(config.learner.store).expanduser().absolute()
    with explain_os_errors(f"learner.store {place}: {store} cannot be made a link"):
        store.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # of an earlier start, or by another rank
            store.symlink_to(place / f"{config.name}-{secrets.token_hex(4)}")
    if (theirs := Path(os.path.realpath(store))).parent != place.resolve():
        log.warning("learner.store %s has no effect: this run has its replay in %s", place, theirs)


class RunFolder:
    """The folder of a run, which belongs to this learner until `resources` are closed. Time is an argument.

    Raises:
      ConfigError: it cannot be written, or another process has it.
    """

    def __init__(self, config: RunConfig, resources: ExitStack, computation: Computation) -> None:
        self._config, self._resources, self._computation = config, resources, computation
        self.checkpoints = Checkpoints(config.folder, resources.enter_context(claim(config.folder)))
        self._queue = EvaluationQueue(config.folder, config.envserver.step_timeout_s)
        self._recorder: Recorder | None = None
        self._own: set[str] = set()  #: names of what is recorded, under which callers log nothing
        self._saved_at: float | None = None
        self._errors = 0
        self._faults: dict[str, str] = {}  #: what cannot be written at present -> why, as a sentence

    def begin(self, steps: int) -> None:
        """Go on after so many steps, 0 in a new run."""
        config = self._config
        if not (settings := config.folder / run_files.CONFIG).exists():  # `beast evaluate` reads them
            write_atomically(settings, dump(config), durable=True)
        self._links = CheckpointLinks(config, steps)
        (config.folder / run_files.REACHED_FILE).unlink(missing_ok=True)
        self._begins_at = steps
        with contextlib.suppress(DiskError):  # a full disk costs rows, not the start
            self._open_recorder()

    def due(self, steps: int, took_s: float) -> bool:
        """Whether a checkpoint has to be saved at this step, after an update that took so long."""
        return took_s > LONG_S or self._links.due(steps)

    def has_reached_return(self, training: TrainingRun) -> bool:
        """Whether the run has reached `stop_at_return`: by any evaluation or, if there are none, in training."""
        goal, how = self._config.stop_at_return, self._config.evaluate
        if goal is None:
            return False
        scores = [] if self._config.evaluates else [training.meters.score]
        if self._config.evaluates:
            with contextlib.suppress(ConfigError):  # if no file can be opened now, the next row reads it again
                rows, first = evaluations.read_evaluations(self._config.folder), evaluations.first_level(how.levels)
                scores += evaluations.scores(rows, [first], how.actions).values()
        return any(score is not None and score >= goal for score in scores)

    def record(self, training: TrainingRun, record: Record | None) -> None:
        """Append a row of metrics, if there is anything to write, and do what callers have asked for until then."""
        if record is not None:
            self._own |= record.row.keys() | record.losses.keys()
            record = record._replace(row={**self._apply_requests(training), **record.row})
            self.checkpoints.demand()
            try:
                with self._computation:
                    fault = self._open_recorder().write(record)
            except DiskError as error:
                fault = f"metrics are lost: {error}"
            self._note("metrics", fault)

    def _apply_requests(self, training: TrainingRun) -> dict[str, float]:
        """Change the settings that callers ask to change; returns the values that they log, by name."""
        asked: dict[str, dict[str, Any]] = {}
        try:
            asked = requests.take_requests(self._config.folder)
            if settings := asked[requests.SET]:
                self._change(training, settings)
        except (OSError, ConfigError) as error:
            log.warning("not done as asked: %s", error)
        return requests.select_loggable(self._config.folder, asked.get(requests.LOG, {}), self._own)

    def _change(self, training: TrainingRun, settings: Mapping[str, Any]) -> None:
        """Change settings, here and in the folder. Raises ConfigError if they may not change so."""
        config, file = training.trainer.config, self._config.folder / run_files.CONFIG
        values = live.check_changes(config, settings)
        tree = nest({**dict(leaves(read_yaml(file, str(file)))), **settings})
        write_atomically(file, as_yaml(tree), durable=True)
        live.apply_changes(config, values)
        log.info("from agent step %d on: %s", training.trainer.counters.agent_steps, settings)

    def _open_recorder(self) -> Recorder:
        """What writes the metrics. Raises DiskError if its files cannot be opened yet."""
        if self._recorder is None:
            self._recorder = Recorder(self._config.folder, self._begins_at)
            self._resources.callback(self._recorder.close)
        return self._recorder

    def checkpoint(self, training: TrainingRun, now: float, *, last: bool, finished: bool) -> None:
        """Save the run.

        Raises:
          CheckpointError, DiskError: it cannot be written, and it is the `last` one. Otherwise the page reports it.
        """
        steps, state = training.trainer.counters.agent_steps, training.state(now)
        try:
            with self._computation:
                self.checkpoints.save(state)
        except (CheckpointError, DiskError) as error:
            self._note("checkpoint", str(error))
            self._links.plan(steps)
            if last:
                raise
        else:
            self._note("checkpoint", "")
            training.saved_updates = training.trainer.counters.updates
            self._saved_at = now
            log.info("saved at agent step %d", steps)
            self._links.link_saved(steps, score=training.meters.score, finished=finished)

    def report(self, now: float) -> dict[str, Any]:
        """For the health page; the age is null until this start has written a checkpoint."""
        waiting = run_files.list_checkpoints(self._config.folder, run_files.TO_EVALUATE)
        return {
            "checkpoint_age_s": None if self._saved_at is None else round(now - self._saved_at, 1),
            "write_errors": self._errors,
            "unsaved": "; ".join(self._faults.values()),
            "evaluations_waiting": len(waiting) if self._config.evaluates else 0,
        }

    def awaits_evaluation(self, now: float) -> bool:
        """Whether policies wait for an evaluator that the run should have, and that gets on with them."""
        return self._config.evaluates and self._queue.waits(now)

    def note_end(self, training: TrainingRun) -> None:
        """Note that the run has ended before its last step, if it has."""
        if training.ended and not training.fault:
            write_atomically(
                self._config.folder / run_files.REACHED_FILE, f"{self._config.stop_at_return}\n", durable=True
            )

    def _note(self, what: str, fault: str) -> None:
        """Count a failed write; log once that writing fails, and once that it works again."""
        if fault:
            self._errors += 1
            if what not in self._faults:
                log.warning("%s; training goes on, and it is tried again", fault)
            self._faults[what] = fault
        elif self._faults.pop(what, ""):
            log.info("the %s can be written again", what)
