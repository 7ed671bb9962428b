"""One service as seen from outside. No sockets, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ServiceView:
    """A service as far as it is known.

    Attributes:
      name: of the process, such as "actor 0".
      role: of its service.
      page: the newest health page, empty before the first.
      silent_s: seconds since that page, or since the start.
      memory_bytes: resident set of the process and its helpers, None where unknown.
      cpu_share: cores in use by them, None where unknown.
      code: exit code where it has ended.
      note: why it ended, or why it cannot be asked.
    """

    name: str
    role: str
    page: dict[str, Any] = field(default_factory=dict)
    silent_s: float = 0.0
    memory_bytes: int | None = None
    cpu_share: float | None = None
    code: int | None = None
    note: str = ""
