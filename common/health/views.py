"""One service as seen from outside. No sockets, no clock."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ServiceView:
    """What is known of a service."""

    name: str  #: of the process, such as "actor 0"
    role: str
    page: dict[str, Any] = field(default_factory=dict)  #: the newest page; empty before the first
    silent_s: float = 0.0  #: seconds since that page, or since the start
    memory_bytes: int | None = None  #: resident set of the process and its helpers, if known
    cpu_share: float | None = None  #: cores in use by them, if known
    code: int | None = None  #: exit code, if it has ended
    note: str = ""  #: why it ended, or why it cannot be asked
