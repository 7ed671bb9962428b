"""Flags of one service process, beside the settings of the run that all processes share."""

from pathlib import Path

from zerobeast.common.settings import PLACE, REACH, Section, setting
from zerobeast.common.settings.kinds import Address


class Instance(Section):
    """Which process of its role this is, and who looks after it."""

    index: int | None = setting(None, "which of the processes of this role, if counted", ge=0, le=65_535)
    start: int = setting(
        0, "agent steps that the run continues after: an actor with an index plays on by other seeds", ge=0
    )
    core: int | None = setting(None, "number of the core to stay on; without it any", ge=0, le=65_535)
    supervisor_pid: int = setting(0, "end when this is no longer the parent process; 0: never", ge=0)
    status_file: Path | None = setting(None, "JSON file to write the address of the health page to", decides=PLACE)
    env_server: Address | None = setting(
        None,
        "endpoint of the env-server in which an evaluator plays; without it, one that the evaluator starts",
        decides=REACH,
    )
