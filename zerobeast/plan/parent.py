"""The run that a new run begins from: its weights, and its settings below those that are given now."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerobeast.common.config.layers import InheritedSettings, leaves, read_yaml
from zerobeast.common.config.settings_table import TREE, is_bound, nest, section_at, topic_of
from zerobeast.common.errors import CheckpointError
from zerobeast.common.files import run_files
from zerobeast.common.files.atomic import write_atomically
from zerobeast.common.settings import ParentConfig, Run
from zerobeast.common.settings.facts import About


def is_inherited(path: str) -> bool:
    """Whether a run with another algorithm has this setting too: what weights are bound to, in whole sections, and what
    marks it, but not what is its own.
    """
    if path not in TREE or path == "algo" or path.startswith("parent."):
        return False
    return section_at(path).is_bound or is_bound(path) or topic_of(path) is About.IDENTITY


@dataclass(frozen=True)
class Parent:
    """A checkpoint that a new run begins from. Its file is read once: a run that trains replaces it."""

    run: str  #: as it was named
    file: Path  #: with its settings
    tree: Mapping[str, Any]  #: those settings
    state: Mapping[str, Any]  #: the checkpoint

    @property
    def entry(self) -> ParentConfig:
        """Its entries in the settings of the new run."""
        return ParentConfig(run=self.run, agent_steps=self.state["counters"]["agent_steps"])

    def settings(self, algo: str) -> InheritedSettings:
        """By path, those that the new run has as well: all, or those of environment and network alone.

        Args:
          algo: section of the new run's algorithm; empty: the same.
        """
        own = not algo or algo in self.tree
        return InheritedSettings({path: value for path, value in leaves(self.tree) if own or is_inherited(path)})

    def write(self, folder: Path) -> None:
        """Leave the checkpoint in the folder of the new run, for its learner.

        Raises:
          ConfigError: it cannot be written.
        """
        import torch

        buffer = io.BytesIO()
        torch.save(dict(self.state), buffer)
        write_atomically(folder / run_files.PARENT, buffer.getbuffer(), durable=True)


def load_parent(run: str, place: Path) -> Parent:
    """The parent that a name stands for.

    Args:
      run: the name.
      place: folder of the run, whose newest checkpoint is meant, or a checkpoint.

    Raises:
      ConfigError: the settings of the run cannot be read.
      CheckpointError: there is no checkpoint that can be read.
    """
    from zerobeast.services.learner.checkpoint import Checkpoints, load_checkpoint

    path = place / run_files.CHECKPOINT if place.is_dir() else place
    state = Checkpoints(place).load() if place.is_dir() else load_checkpoint(place)
    if state is None:
        raise CheckpointError(f"{path}: there is no checkpoint")
    if type(state["counters"].get("agent_steps")) is not int:
        raise CheckpointError(f"{path}: the checkpoint has no count of its agent steps")
    if folder := run_files.folder_of(place):
        file = folder / run_files.CONFIG
        return Parent(run, file, read_yaml(file, f"file {file}"), state)
    # the settings in a checkpoint are those of a process: the shares of one machine and the addresses of one start
    section = next(iter(state["config"].keys() - Run.model_fields.keys()), "")
    kept = ("algo", "total_steps")
    leaf = leaves(state["config"])
    tree = {key: value for key, value in leaf if key in kept or is_inherited(key) or key.startswith(f"{section}.")}
    return Parent(run, path, nest(tree), state)
