"""The file that a run continues from: written whole or not at all, read without executing anything in it.

    checkpoint.pt            the newest
    checkpoint.previous.pt   the one before, used if a disk has damaged the newest
    .checkpoint.pt.new       being written; it counts once it is renamed

One dict of plain values and tensors, so that `torch.load(weights_only=True)` suffices:

    format        CHECKPOINT_FORMAT
    model         state dict of the policy that acts
    learning      `zerobeast.rl.protocol.Learning.state()`: optimisers, and whatever else the algorithm trains
    counters      `zerobeast.services.learner.update.Counters`
    config        the tree of settings of the run that wrote it
    env, policy   `EnvSpec.to_wire()`, `PolicySpec.to_wire()`
    rng           {"torch": state, "cuda": [states]}
    statistics    of episodes
    rollouts      what became of them, and how far each stream has come: `zerobeast.services.learner.ledger`
    ranks         [{"learning", "rng"}] of each rank after the first: rows of its own, and what draws from them

The learning rate needs no entry: it is a function of counters.agent_steps.
"""

import io
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from zerobeast.common.errors import CheckpointError
from zerobeast.common.files import run_files
from zerobeast.common.files.atomic import draft_file, explain_os_errors, sync
from zerobeast.rl.nets.checkpoint import CHECKPOINT_FORMAT, DamagedCheckpoint, load_checkpoint, load_model

__all__ = ["CHECKPOINT_FORMAT", "Checkpoints", "load_checkpoint", "load_model", "random_state", "restore_random_state"]

log = logging.getLogger(__name__)


class Checkpoints:
    """The newest checkpoint of a run, and its predecessor.

    Args:
      folder: of the run.
      demand: raises ConfigError if the folder is another learner's by now; called before anything there is replaced.
    """

    def __init__(self, folder: Path, demand: Callable[[], None] = lambda: None) -> None:
        self.demand = demand
        self.path = folder / run_files.CHECKPOINT
        self._previous = folder / run_files.PREVIOUS_CHECKPOINT
        self._whole = False  #: `path` is worth keeping: it was read or written here

    def load(self) -> dict[str, Any] | None:
        """Read the newest one that is whole; None if there never was one.

        Raises:
          CheckpointError: none of those that exist is whole, or this program cannot read the newest.
        """
        try:
            state = load_checkpoint(self.path)
        except DamagedCheckpoint as error:
            if not self._previous.exists():
                raise
            log.warning("%s; going back to %s", error, self._previous.name)
            return load_checkpoint(self._previous)
        self._whole = state is not None
        if state is None and self._previous.exists():
            log.warning("%s is missing; going back to %s", self.path, self._previous.name)
            return load_checkpoint(self._previous)
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Replace the newest, atomically and durably; it becomes the predecessor.

        Raises:
          ConfigError: the folder is another learner's.
          CheckpointError, DiskError: it cannot be written, ever or now; the newest is still there, under one of its
            two names, and no partial file remains.
        """
        content = pack_state(state)
        failure = explain_os_errors(f"{self.path}: the checkpoint cannot be written", CheckpointError)
        with failure, draft_file(self.path, durable=True) as draft:
            draft.write_bytes(content)
            sync(draft)  # before anything there is replaced
            self.demand()
            if self._whole and self.path.exists():
                self._keep()
        self._whole = True

    def _keep(self) -> None:
        """Give the newest a second name, so that `path` always leads to a whole file."""
        self._previous.unlink(missing_ok=True)
        try:
            os.link(self.path, self._previous)
        except OSError:  # a file system without hard links: for a moment the predecessor is all there is
            self.path.replace(self._previous)


def pack_state(state: dict[str, Any] | None) -> bytes:
    """Plain values and tensors as bytes."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def unpack_state(content: bytes) -> Any:
    """Inverse of `pack_state`; nothing in it is executed."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def random_state() -> dict[str, Any]:
    """The state of torch's generators."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"torch": torch.get_rng_state(), "cuda": cuda}


def restore_random_state(saved: dict[str, Any]) -> None:
    """Inverse of `random_state`; a GPU without a saved state keeps its own."""
    torch.set_rng_state(saved["torch"])
    if torch.cuda.is_available():
        for index, state in enumerate(saved["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, index)
