"""Numbers that may follow a linear schedule: `Annotated[float, Field(...), *SCHEDULED]` takes `linear 0.01 0` too."""

from __future__ import annotations

import re
from typing import Any

from pydantic import PlainSerializer, WrapValidator

FORM = re.compile(r"linear (\S+) (\S+)")


class Linear(float):
    """A number that moves from `first` at the begin of a run to `last` at `total_steps`; by itself it is `first`."""

    def __new__(cls, first: float, last: float) -> Linear:
        made = super().__new__(cls, first)
        made.last = last
        return made

    last: float

    def at(self, done: Any) -> float:
        """Its value when a share of the run's steps, a number or tensor [] from 0 to 1, is done."""
        return float(self) + min(1.0, float(done)) * (self.last - float(self))

    def __str__(self) -> str:
        return f"linear {float(self)} {self.last}"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __getnewargs__(self) -> tuple[float, float]:  # type: ignore[override]  # of float it is the number alone
        return float(self), self.last


def _parse_schedule(value: Any, checked: Any) -> float:
    found = FORM.fullmatch(str(value))
    return Linear(checked(found[1]), checked(found[2])) if found else checked(value)


SCHEDULED = (
    WrapValidator(_parse_schedule),
    PlainSerializer(lambda value: str(value) if isinstance(value, Linear) else value),
)
