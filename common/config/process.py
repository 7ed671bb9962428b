"""Flags of one service process, beside the settings of the run that all processes share."""

from pathlib import Path

from zerobeast.common.settings import PLACE, REACH, Section, setting
from zerobeast.common.settings.kinds import Address


class Instance(Section):
    """Which process of its role this is, and who looks after it."""

    index: int | None = setting(None, "index of this process among those of its role; empty: none", ge=0, le=65_535)
    start: int = setting(
        0, "agent steps at which the run resumes; changes the environment seeds of an actor with an index", ge=0
    )
    core: int | None = setting(None, "CPU core to pin the process to; empty: none", ge=0, le=65_535)
    supervisor_pid: int = setting(0, "exit when this process is no longer the parent; 0: never", ge=0)
    status_file: Path | None = setting(None, "JSON file for the address of the health page; empty: none", decides=PLACE)
    env_server: Address | None = setting(
        None,
        "endpoint of the env-server for an evaluator; empty: the evaluator starts its own",
        decides=REACH,
    )
