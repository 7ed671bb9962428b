"""What an env-server holds of one of its worker processes."""

from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal

from zerobeast.common.wire.codec import pack
from zerobeast.services.envserver.worker import RESET

START = RESET + pack([None, None, None])


@dataclass
class Worker:
    """One process and its slice of the environments."""

    part: slice  #: of the rows
    seed: int  #: for its first process, and for each that replaces a worn one
    seeded: bool = True  #: whether the next process gets it, and not any seed, as in place of one that has failed
    process: Any = None
    pipe: Connection | None = None  #: None while there is no process
    mark: str = ""  #: carried by every process that it starts
    start: bytes = START  #: the request that a new process gets in place of one that is under way
    awaits: Literal["spec", "rows", ""] = "spec"
    since: float = 0.0  #: when that was asked for, or progress made; without a pipe: since then, or when to start one
    outcome: dict[str, Any] = field(default_factory=dict)  #: the newest
    was_reset: bool = False
    deaths: int = 0
    oom_before: dict[str, int] = field(default_factory=dict)  #: what `endings.oom_kills` was when its process began
    hangs: str = ""  #: a text that says how long an environment has not answered, if that was too long
