"""Read the checkpoint of a run; what it holds, and who writes it, is in `zerobeast.services.learner.checkpoint`."""

import errno
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zerobeast.common.errors import CheckpointError, RemoteProtocolError
from zerobeast.common.files.regular_files import open_regular

CHECKPOINT_FORMAT = 6
SAME_RUN = "continue with the settings it was made with, or use another name"
#: what entries that are not what they should be raise; RuntimeError: torch, of tensors in their place
UNREADABLE_ERRORS = (
    RemoteProtocolError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    RuntimeError,
)
DAMAGE = (errno.EIO, errno.EINVAL)  #: a bad sector; an impossible offset inside the file
_SECTIONS = ("model", "learning", "counters", "config", "env", "policy", "rng", "statistics", "rollouts")


class DamagedCheckpoint(CheckpointError):
    """The file is not whole, as after a disk fault or a copy that was cut off."""


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """Read one file; None if there is none.

    Raises:
      DamagedCheckpoint: it is not whole.
      CheckpointError: it cannot be read, or is not one that this program reads.
    """
    if not path.exists():
        return None
    try:
        state = _read_file(path)
    except OSError as error:
        kind = DamagedCheckpoint if error.errno in DAMAGE else CheckpointError
        raise kind(f"{path}: the checkpoint cannot be read: {error.strerror or error}") from error
    except Exception as error:  # whatever damaged or foreign bytes make zipfile and torch raise
        why = f"({type(error).__name__}): truncated, or written by another program"
        raise DamagedCheckpoint(f"{path}: not a whole checkpoint {why}") from error
    return _check_outline(path, state)


def _check_outline(path: Path, state: Any) -> dict[str, Any]:
    """A file's content if it has the outline of a checkpoint; its users judge the entries."""
    if not isinstance(state, dict) or "format" not in state:
        raise CheckpointError(f"{path}: not a checkpoint of this program: it has no entry 'format'")
    if type(state["format"]) is not int or state["format"] != CHECKPOINT_FORMAT:
        raise CheckpointError(f"{path}: checkpoint format {state['format']}, this program reads {CHECKPOINT_FORMAT}")
    if missing := set(_SECTIONS) - state.keys():
        raise CheckpointError(f"{path}: the checkpoint has no entry {min(missing)!r}")
    for name in _SECTIONS:
        if not isinstance(state[name], dict):
            raise CheckpointError(f"{path}: entry {name!r} is a {type(state[name]).__name__}, expected a dict")
    return state


def _read_file(path: Path) -> Any:
    with open_regular(path) as file:
        with zipfile.ZipFile(file) as archive:  # torch writes checksums but does not verify them
            damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"{damaged} fails its checksum")
        file.seek(0)
        return torch.load(file, map_location="cpu", weights_only=True)


def load_model(path: Path, net: nn.Module, saved: dict[str, Any], way_out: str = SAME_RUN) -> None:
    """Put the checkpoint's parameters into a network; `way_out` is the advice if they do not fit.

    Raises:
      CheckpointError: they belong to another architecture.
    """
    shapes = {name: tuple(value.shape) for name, value in saved.items() if isinstance(value, torch.Tensor)}
    expected = {name: tuple(value.shape) for name, value in net.state_dict().items()}
    for name in [*expected, *(name for name in shapes if name not in expected)]:
        theirs, ours = shapes.get(name), expected.get(name)
        if theirs != ours:
            what = f"parameter {name!r} is {_format_shape(theirs)} there, but {_format_shape(ours)} in this run"
            raise CheckpointError(f"{path}: the checkpoint is of another architecture: {what}; {way_out}")
    net.load_state_dict(saved)


def _format_shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else f"of shape {list(shape)}"
