"""The evaluator's shell: it evaluates each policy that the learner leaves in the run's folder, one after the other.

Playing takes a thread of its own, so that the health page answers meanwhile. What could not be evaluated is tried
again; nothing that happens here stops the training.
"""

import contextlib
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from zerobeast.common.config.process import Instance
from zerobeast.common.errors import BeastError, ConfigError, PeerLost
from zerobeast.common.files import evaluations, run_files
from zerobeast.common.files.atomic import explain_os_errors
from zerobeast.common.files.evaluation_queue import EvaluationQueue
from zerobeast.common.files.evaluations import Row
from zerobeast.common.files.links_outside import refuse_links_outside
from zerobeast.common.service.base import Service
from zerobeast.common.settings import NO_RUN, RunConfig
from zerobeast.common.settings.section import LIMIT
from zerobeast.common.wire.episodes import Episode
from zerobeast.launcher.env_server import env_server
from zerobeast.playing.play import Watch, play_each
from zerobeast.playing.policy import Policy
from zerobeast.rl.acting.opponents import load_opponent
from zerobeast.rl.nets.checkpoint import load_checkpoint
from zerobeast.services.evaluator.results import Results

log = logging.getLogger(__name__)

LOOK_PERIOD_S = 0.5  #: between two looks into the folder
MAX_TRIES = 3  #: of one policy
PATIENCE = 10.0  #: times `envserver.step_timeout_s`: processes of its niceness wait for the CPU while the run trains
DISK_S = 60.0  #: until another try, if the disk or an absent env-server was in the way


class _EvaluationStopped(Exception):
    """Ends an evaluation because the process ends."""


class Evaluator(Service):
    """Plays whole episodes of a run's policies, as `config.evaluate` sets, and keeps the best policy."""

    role = "evaluator"
    work = ("agent_steps",)

    def __init__(self, config: RunConfig, instance: Instance) -> None:
        super().__init__()
        # on the CPU: niceness does not count on a GPU, which the training needs
        broker = config.broker.model_copy(update={"device": "cpu"})
        longer = {"step_timeout_s": min(PATIENCE * config.envserver.step_timeout_s, LIMIT)}
        envserver = config.envserver.model_copy(update=longer)
        self.config = config.model_copy(update={"broker": broker, "envserver": envserver})
        self._thread = ThreadPoolExecutor(1, "evaluation")
        self._job: Future[list[Row]] | None = None
        self._results = Results(self.config)
        self._at, self._path = 0, Path()  #: the checkpoint that is evaluated, and its agent steps
        self._tries = 0
        self._immovable: set[Path] = set()  #: what can be neither deleted nor renamed
        self._queue = EvaluationQueue(config.folder, config.envserver.step_timeout_s)
        self._began_at = self._discarded = 0
        self._look_at = 0.0
        self._steps = self._before = self._episodes = self._evaluations = self._failures = 0
        self._last: float | None = None  #: mean return of the newest evaluation
        self._trouble = ""
        self._opponent: Policy | None = None
        self._elsewhere = self._endpoint = instance.env_server or ""
        self._hosting = contextlib.ExitStack()  #: the env-server that it has started, whose endpoint that is then

    def open(self) -> None:
        """Find out what was evaluated before.

        Raises:
          ConfigError: the run has no name, its folder cannot be written or leads elsewhere, a level is unknown, or
            videos need an environment here.
        """
        if not self.config.name:
            raise ConfigError(
                path="name", expected=f"the name of the run; it is looked for in {self.config.root}/<name>"
            )
        if self._elsewhere and self.config.evaluate.video_every:
            raise ConfigError(
                f"evaluate.video_every {self.config.evaluate.video_every} with --env_server: expected 0, because "
                "videos need an environment in this process; `beast record` can record them afterwards"
            )
        torch.set_num_threads(1)
        queue = self.config.folder / run_files.TO_EVALUATE
        with explain_os_errors(f"{queue}: cannot be written"):
            self.config.folder.mkdir(parents=True, exist_ok=True)
            refuse_links_outside(self.config.folder)
            queue.mkdir(exist_ok=True)
        self._results.open()

    def take(self) -> None:
        """Begin with the oldest policy that waits, or take what was found about it."""
        now = self.clock()
        if self._job is not None and self._job.done():
            job, self._job = self._job, None
            self._finish(job)
        if self._job is None and now >= self._look_at:
            self._look_at = now + LOOK_PERIOD_S
            waiting = run_files.list_checkpoints(self.config.folder, run_files.TO_EVALUATE)
            if found := [entry for entry in waiting if entry[1] not in self._immovable]:
                self._began_at = self._before + self._steps
                self._tries = self._tries + 1 if found[0] == (self._at, self._path) else 1
                self._at, self._path = found[0]
                self._job = self._thread.submit(self._evaluate, self._path)

    def tick(self, now: float) -> None:
        """Show those who wait for the evaluator that it gets on: one that plays the same again does not."""
        self._queue.report_progress((self._discarded, self._before + self._steps - self._began_at), now)

    def deadline(self) -> float:
        return self._look_at if self._job is None else self.clock() + LOOK_PERIOD_S

    def idle(self) -> bool:
        return self._job is None

    def works_elsewhere(self) -> bool:
        return self._job is not None

    def close(self) -> None:
        self.stopping = True
        self._thread.shutdown()
        self._hosting.close()
        self._results.close()
        super().close()

    def report(self) -> dict[str, Any]:
        """Numbers for the health page."""
        return {
            "agent_steps": self._before + self._steps,
            "episodes": self._episodes,
            "evaluations": self._evaluations,
            "evaluations_waiting": len(run_files.list_checkpoints(self.config.folder, run_files.TO_EVALUATE)),
            "evaluations_failed": self._failures,
            "evaluated_return": self._last,
            "best_return": self._results.best,
            "evaluating": None if self._job is None else self._at,
            "trouble": self._trouble,
        }

    def _evaluate(self, path: Path) -> list[Row]:
        """In its thread: one row for each environment."""
        saved = load_checkpoint(path)
        if saved is None:
            raise BeastError(f"{path}: it is gone")
        policy, played = Policy(self.config, saved, path), path.stat()
        evaluations.read_evaluations(self.config.folder)  # before it plays for a table that cannot be read
        rows = self._play(policy, float(saved["counters"]["elapsed_s"]))
        self._results.add(rows, path, played)
        self.record_video(policy)
        return rows

    def _play(self, policy: Policy, elapsed_s: float) -> list[Row]:
        if self._opponent is None and self.config.env.opponent not in NO_RUN:
            path, state = load_opponent(self.config.env.opponent, self.config.root, policy.env)
            self._opponent = Policy(self.config, state, path)
        try:
            self._endpoint = self._endpoint or self._hosting.enter_context(env_server(self.config))
            played = play_each(
                policy, self.config, self._endpoint, opponent=self._opponent, watch=self._watch_from_here
            )
            return [{**found.row(), "elapsed_s": round(elapsed_s, 1), "level": level} for level, found in played]
        except BaseException as error:  # the next one gets a fresh env-server
            self._endpoint = self._elsewhere
            self._hosting.__exit__(type(error), error, error.__traceback__)  # may raise an error that explains more
            raise

    def record_video(self, policy: Policy) -> None:
        """Every Nth time, a video of the first episode in each environment. Without one, an evaluation is as good."""
        if not (every := self.config.evaluate.video_every):
            return
        try:
            if len(self._results.scores()) % every:
                return
            from zerobeast.playing.video import record_video

            path = self.config.folder / evaluations.video_path(policy.agent_steps, self.config.evaluate.actions)
            record_video(policy, self.config, path, watch=self._watch_video)
            log.info("recorded %s", path)
        except Exception as error:
            known = isinstance(error, BeastError | ModuleNotFoundError | _EvaluationStopped)
            log.warning("no video of step %d: %s", policy.agent_steps, error, exc_info=not known)

    def _watch_video(self, _episode: int, _steps: int) -> None:
        if self.stopping:
            raise _EvaluationStopped("the evaluator ends")
        self._before += 1

    def _watch_from_here(self) -> Watch:
        """What watches the next environment."""
        self._before, self._steps = self._before + self._steps, 0
        return self._watch

    def _watch(self, episodes: list[Episode], steps: int) -> None:
        if self.stopping:
            raise _EvaluationStopped
        self._steps = steps
        self._episodes += len(episodes)

    def _finish(self, job: "Future[list[Row]]") -> None:
        """Show what was found, and keep the policy if it is the best; or try again."""
        steps = self._at
        try:
            rows = job.result()
        except _EvaluationStopped:
            return
        except Exception as error:
            known = isinstance(error, BeastError | OSError)
            self._failures, self._trouble = self._failures + 1, str(error)
            log.warning("the policy of step %d cannot be evaluated: %s", steps, error, exc_info=not known)
            absent = self._elsewhere and isinstance(error, PeerLost) and self._before + self._steps == self._began_at
            if isinstance(error, OSError) or absent:  # whatever it is, the policy is played again once it has passed
                self._tries, self._look_at = 0, self.clock() + DISK_S
            elif self._tries >= MAX_TRIES:
                self._discard()
            return
        self._evaluations, self._trouble = self._evaluations + 1, ""
        self._last = evaluations.scores(rows, self._results.deciding, rows[0]["actions"])[rows[0]["agent_steps"]]
        played = sum(row["episodes"] for row in rows if row["env"] in self._results.deciding)
        lost, actions = sum(row["lost"] for row in rows), rows[0]["actions"]
        found = "step %d: return %.4g over %d episodes (%s), %d lost to failures and replayed"
        log.info(found, steps, self._last, played, actions, lost)
        self._results.draw(rows, steps)
        with contextlib.suppress(OSError, ConfigError):  # a full disk costs the copy
            self._results.keep_if_best(self._path, steps)
        self._discard()

    def _discard(self) -> None:
        """Take the policy out of the queue, or at least not again."""
        self._discarded += 1
        for way_out in (partial(Path.unlink, missing_ok=True), run_files.move_aside, self._immovable.add):
            with contextlib.suppress(OSError):
                way_out(self._path)
                break
        self._path = Path()
