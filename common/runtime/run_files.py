"""What the folder of a run holds, and under which names."""

from __future__ import annotations

from pathlib import Path

CONFIG = "config.yaml"  #: the settings that the run is trained with
CHECKPOINT = "checkpoint.pt"
PREVIOUS_CHECKPOINT = "checkpoint.previous.pt"
CHECKPOINT_DRAFT = ".checkpoint.pt.new"  #: while it is being written
METRICS = "metrics.csv"
TENSORBOARD = "tensorboard"  #: event files of the learner
TENSORBOARD_SERVICES = Path(TENSORBOARD, "services")  #: event files of the launcher, which sees all services
STORE = "store"  #: rows that an algorithm with a replay of its own keeps
LOGS = "logs"  #: <role>-<index>.log
SERVICES = "services"  #: <role>-<index>.json: where the health page of that service is
LAUNCHER_LOCK = ".lock"
LEARNER_LOCK = ".learner.lock"


def status_of(status: Path, role: str, index: int) -> Path:
    """The file of one of several services that share the process whose file would be `status`."""
    return status.with_name(f"{role}-{index}.json")
