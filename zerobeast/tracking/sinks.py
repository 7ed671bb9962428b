"""Experiment trackers behind one small interface. Any package can bring another (`--track module:Class`).

Its rules are `zerobeast.testing.tracker`.
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from zerobeast.common.plugins import find_part

TRACKERS = "zerobeast.trackers"  #: group of entry points
PROJECT = "zerobeast"


class TrackedRun(NamedTuple):
    """A run, as a tracker gets it."""

    folder: Path
    project: str
    name: str
    id: str  #: of this run alone, the same whenever it continues
    config: Mapping[str, Any]  #: the tree of settings


class Sink(Protocol):
    """A tracker. What it raises, in its constructor too, is logged, and the same rows are written again later.

    Args:
      run: the run.
    """

    def __init__(self, run: TrackedRun) -> None: ...

    def write(self, values: Mapping[str, float], agent_steps: int) -> None:
        """Add a point to several curves, by name, such as train/mean_return_100 and eval/mean_return."""

    def video(self, path: Path, agent_steps: int) -> None:
        """Add a video, an MP4 or GIF, of the policy after so many agent steps."""

    def close(self) -> None:
        """Write whatever is left, before returning: processes that it has started end with this one."""


class Trackio:
    """Trackio: a database on this machine (`trackio show`), unless TRACKIO_SPACE_ID or TRACKIO_SERVER_URL is set."""

    package = "trackio"

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self._trackio = trackio
        self._run = trackio.init(
            run.project,
            f"{run.name}-{run.id}",  # by which it resumes: another run may have the name
            config=dict(run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def write(self, values: Mapping[str, float], agent_steps: int) -> None:
        self._run.log(dict(values), step=agent_steps)

    def video(self, path: Path, agent_steps: int) -> None:
        self._run.log({"video": self._trackio.Video(str(path))}, step=agent_steps)

    def close(self) -> None:
        self._trackio.finish()  # type: ignore[no-untyped-call]


class Wandb:
    """Weights & Biases. It has its own variables: WANDB_MODE=offline, WANDB_ENTITY, WANDB_API_KEY, WANDB_BASE_URL.

    What could not be sent stays in `wandb/` in the folder of the run, for `wandb sync`.
    """

    package = "wandb"

    def __init__(self, run: TrackedRun) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        self._wandb = wandb
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=run.id,
            resume="allow",
            dir=run.folder,
            config=dict(run.config),
            settings=wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True),
        )
        self._run.define_metric("agent_steps")
        self._run.define_metric("*", step_metric="agent_steps")  # evaluations come later than rows of more steps

    def write(self, values: Mapping[str, float], agent_steps: int) -> None:
        self._run.log({**values, "agent_steps": agent_steps})

    def video(self, path: Path, agent_steps: int) -> None:
        video = self._wandb.Video(str(path), format="gif" if path.suffix == ".gif" else "mp4")
        self._run.log({"video": video, "agent_steps": agent_steps})

    def close(self) -> None:
        self._run.finish()


def load_tracker(name: str) -> type[Sink]:
    """The class of a tracker, which is not started yet.

    Raises:
      ConfigError: there is none of this name.
      ModuleNotFoundError: its package is not installed.
    """
    found: type[Sink] = find_part(TRACKERS, name, "track")
    package = getattr(found, "package", "")
    if package and find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return found
