"""The contents of a run's folder, by name, and locks of its files."""

import fcntl
import functools
import logging
from pathlib import Path

CONFIG = "config.yaml"  #: the settings that the run is trained with
CHECKPOINT = "checkpoint.pt"
PREVIOUS_CHECKPOINT = "checkpoint.previous.pt"
CHECKPOINT_DRAFT = ".checkpoint.pt.new"  #: a checkpoint that is being written
METRICS = "metrics.csv"
EPISODES = "episodes.csv"
EVALUATIONS = "evaluations.csv"
CHECKPOINTS = "checkpoints"  #: <agent_steps>.pt: those that are kept
TO_EVALUATE = "evaluate"  #: <agent_steps>.pt: those that wait for the evaluator
BEST_CHECKPOINT = Path("best", "checkpoint.pt")  #: of the policy with the best evaluation, or training return
VIDEOS = "videos"
TENSORBOARD = "tensorboard"  #: event files of the learner
TENSORBOARD_EVALUATIONS = Path(TENSORBOARD, "evaluations")  #: event files of the evaluator
TENSORBOARD_SERVICES = Path(TENSORBOARD, "services")  #: event files of the launcher, which sees all services
STORE = "store"  #: rows kept by an algorithm that has its own replay
LOGS = "logs"  #: <role>-<index>.log
SERVICES = "services"  #: <role>-<index>.json: where the health page of that service is
LAUNCHER_LOCK = ".lock"
LEARNER_LOCK = ".learner.lock"

warn_once = functools.cache(logging.getLogger(__name__).warning)


def status_of(status: Path, role: str, index: int) -> Path:
    """The status file of one of several services in a process whose own file would be `status`."""
    return status.with_name(f"{role}-{index}.json")


def lock(descriptor: int, folder: Path) -> None:
    """Lock an open file of a run's folder until it is closed; only warn, once, if its file system has no locks.

    Lustre may be mounted without them, and some network file systems have none.

    Raises:
      BlockingIOError: another process holds the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        sentence = "%s: its file system has no locks (%s): of two learners there, the earlier one will stop"
        warn_once(sentence, folder, error.strerror)


def numbered(agent_steps: int) -> Path:
    """A checkpoint that is kept by its number."""
    return Path(CHECKPOINTS, f"{agent_steps}.pt")


def kept(folder: Path, kind: str = CHECKPOINTS) -> list[tuple[int, Path]]:
    """The numbered checkpoints of a run, or those that wait for the evaluator, by agent steps, oldest first."""
    return sorted((int(path.stem), path) for path in (folder / kind).glob("*.pt") if path.stem.isdecimal())
