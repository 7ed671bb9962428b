"""A new run that begins with what another one has learned: its weights and, of the same algorithm, its optimisers.

`beast train --from` leaves the parent's checkpoint in the folder of the new run. Its counters, its replay, the
contents of its episodic memory and the statistics of its episodes stay behind.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import torch

from zerobeast.common.errors import CheckpointError, raise_as
from zerobeast.common.files import run_files
from zerobeast.common.settings import RunConfig
from zerobeast.rl.nets import Network
from zerobeast.rl.nets.checkpoint import UNREADABLE_ERRORS
from zerobeast.rl.nets.episodic import clear_contents
from zerobeast.rl.protocol import OF_ITS_RUN, Learning
from zerobeast.services.learner.checkpoint import load_checkpoint, load_model


class Parent:
    """What another run has learned.

    Args:
      run: its name, for messages.
      path: of the checkpoint.
      state: its content.
    """

    def __init__(self, run: str, path: Path, state: Mapping[str, Any]) -> None:
        self._path, self._state = path, clear_contents(state)
        of_both = "settings of net, and the shapes of observations and actions,"
        self._remedy = f"{of_both} have to be those of {run}; a run without --from begins with new weights"

    @classmethod
    def of(cls, config: RunConfig, state: Mapping[str, Any] | None) -> Self:
        """The parent of a run, from its checkpoint."""
        assert state is not None, "the first rank has read it"
        return cls(config.parent.run, config.folder / run_files.PARENT, state)

    def fill(self, net: Network) -> None:
        """Put the weights into the network of the new run, which is at its start.

        Raises:
          CheckpointError: they do not fit; it names the first one that differs.
        """
        load_model(self._path, net, self._state["model"], self._remedy)
        net.agent_steps.zero_()

    def teach(self, learning: Learning, algo: str) -> None:
        """Give the new run what else was learned: optimisers, critics, targets. Nothing if the algorithm is another.

        An optimiser of another kind starts from scratch.

        Raises:
          CheckpointError: it does not fit these settings.
        """
        if algo not in self._state["config"]:
            return
        own, saved = learning.state(), self._state["learning"]
        for name, shape in _shapes({key: value for key, value in own.items() if key not in OF_ITS_RUN}):
            if (theirs := dict(_shapes(saved)).get(name, shape)) != shape:
                why = f"{name!r} has shape {list(theirs)} there, but {list(shape)} in this run"
                raise CheckpointError(f"{self._path}: what was learned does not fit: {why}; {self._remedy}")
        kept = {name for name in own if name in OF_ITS_RUN or _other_kind(own[name], saved.get(name))}
        what = f"{self._path}: what was learned does not fit; {self._remedy}"
        with raise_as(CheckpointError, what, *UNREADABLE_ERRORS, CheckpointError):
            learning.load({**saved, **{name: own[name] for name in kept}})


def read_parent(config: RunConfig) -> dict[str, Any]:
    """The checkpoint of what a new run begins with, which its settings name.

    Raises:
      CheckpointError: there is none, or it cannot be read.
    """
    path = config.folder / run_files.PARENT
    state = load_checkpoint(path)
    if state is None:
        raise CheckpointError(f"{path} is missing: expected the checkpoint of {config.parent.run} (parent.run)")
    return state


def _other_kind(own: Any, saved: Any) -> bool:
    """Whether these are of two optimisers: `GradientDescent.state`."""
    return isinstance(own, dict) and isinstance(saved, dict) and own.get("kind") != saved.get("kind")


def _shapes(state: Any, prefix: str = "") -> Iterator[tuple[str, tuple[int, ...]]]:
    """The shape of every tensor, by its path."""
    if isinstance(state, torch.Tensor):
        yield prefix, tuple(state.shape)
    elif isinstance(state, dict):
        for name, value in state.items():
            yield from _shapes(value, f"{prefix}.{name}" if prefix else str(name))
