"""The faults of a run and their order: drawn from a seed, the same for every run with the same services."""

import random
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

STOPS_S = (1.0, 30.0)  #: shortest, longest
PAUSES_S = (0.1, 2.0)  #: before a restart
TWO_AT_ONCE = 0.2  #: fraction of all faults


class FaultKind(StrEnum):
    """How a service is disturbed."""

    KILL = "SIGKILL"
    TERM = "SIGTERM"
    STOP = "SIGSTOP"


class ServiceFault(NamedTuple):
    """One disturbance.

    Attributes:
      kind: the same for all targets.
      targets: names of services.
      pause_s: seconds until the restart or, for SIGSTOP, until SIGCONT.
    """

    kind: FaultKind
    targets: tuple[str, ...]
    pause_s: float

    @property
    def title(self) -> str:
        """The name that faults are grouped by: "SIGKILL learner", or "SIGKILL two at once"."""
        what = self.targets[0].split()[0] if len(self.targets) == 1 else "two at once"
        return f"{self.kind} {what}"


def draw_faults(seed: int, names: Sequence[str]) -> Iterator[ServiceFault]:
    """Yield faults of these services without end. Every role is equally likely, however many services it has."""
    dice = random.Random(seed)  # noqa: S311 - has to be repeatable
    roles = sorted({name.split()[0] for name in names})
    while True:
        kind = dice.choice(list(FaultKind))
        count = 2 if dice.random() < TWO_AT_ONCE else 1
        targets: list[str] = []
        while len(targets) < count:
            role = dice.choice(roles)
            target = dice.choice([name for name in names if name.split()[0] == role])
            targets += [] if target in targets else [target]
        low, high = STOPS_S if kind is FaultKind.STOP else PAUSES_S
        # log-uniform: each order of magnitude is equally likely
        yield ServiceFault(kind, tuple(targets), low * (high / low) ** dice.random())
