"""The contents of a run's folder, by name."""

from pathlib import Path

CONFIG = "config.yaml"  #: the settings that the run is trained with
CHECKPOINT = "checkpoint.pt"
PREVIOUS_CHECKPOINT = "checkpoint.previous.pt"
CHECKPOINT_DRAFT = ".checkpoint.pt.new"  #: a checkpoint that is being written
METRICS = "metrics.csv"
TENSORBOARD = "tensorboard"  #: event files of the learner
TENSORBOARD_SERVICES = Path(TENSORBOARD, "services")  #: event files of the launcher, which sees all services
STORE = "store"  #: rows kept by an algorithm that has its own replay
LOGS = "logs"  #: <role>-<index>.log
SERVICES = "services"  #: <role>-<index>.json: where the health page of that service is
LAUNCHER_LOCK = ".lock"
LEARNER_LOCK = ".learner.lock"


def status_of(status: Path, role: str, index: int) -> Path:
    """The status file of one of several services in a process whose own file would be `status`."""
    return status.with_name(f"{role}-{index}.json")
