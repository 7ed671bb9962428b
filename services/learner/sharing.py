"""What the ranks of a learner give each other of a run, besides their votes and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from zerobeast.rl.ops import ranks
from zerobeast.services.learner.checkpoint import packed, unpacked

if TYPE_CHECKING:
    from zerobeast.services.learner.run import TrainingRun


def share(training: TrainingRun | None, *, whole: bool) -> None:
    """Give the first rank what it keeps of all others; `whole`: for a checkpoint, and not only for a row of metrics."""
    own = training.part(whole=whole) if training is not None and ranks.rank() else {}
    own["weights"] = training.trainer.checksum() if training is not None and whole else None
    parts = [unpacked(part) for part in ranks.texts(packed(own), "what the first rank keeps")]
    if training is not None and not ranks.rank():
        training.take_parts(parts[1:])
    if training is not None:
        training.compare([part["weights"] for part in parts])


def of_the_first(read: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    """What the first rank reads, on all of them; `read` may take long."""
    own = ranks.patiently(read, "reading")
    found: dict[str, Any] | None = unpacked(ranks.of_the_first(packed(own), "checkpoint")) if ranks.size() > 1 else own
    return found
