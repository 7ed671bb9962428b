"""A folder with an exported policy, in the layout of the Hugging Face hub; nothing in it is pickled.

    README.md            the model card
    model.safetensors    the parameters          if asked for
    model.onnx           the acting step         if asked for
    config.json          settings, environment, versions, evaluations
    replay.mp4           a video, if the run has one; the hub shows it beside the card

It appears whole or not at all.
"""

import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.files.evaluations import Row
from zerobeast.exporting import weights
from zerobeast.exporting.card import Card
from zerobeast.version import __version__

if TYPE_CHECKING:
    from zerobeast.clients.policy import Policy

KINDS = ("safetensors", "onnx")
PACKAGES = (
    "torch",
    "numpy",
    "gymnasium",
    "ale-py",
    "MinAtar",
    "mujoco",
    "Box2D",
    "envpool",
)  #: that matter to a policy


def export(
    policy: "Policy",
    out: Path,
    kinds: Sequence[str] = KINDS[:1],
    *,
    rows: Sequence[Row] = (),
    video: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write a policy, which is on the CPU and in float32.

    Args:
      policy: the policy.
      out: the folder, which does not exist yet.
      kinds: of KINDS.
      rows: its evaluations.
      video: an MP4 or GIF to copy.
      say: takes a line about the comparison of a graph with torch.

    Returns:
      The folder.

    Raises:
      ConfigError: the folder is there or cannot be written, or the policy has no graph.
    """
    config = policy.config
    refuse_present(out)
    ends, model = {}, b""
    if "onnx" in kinds:
        from zerobeast.exporting import graph

        found = graph.export(policy)
        model, ends = found.model, {"inputs": found.inputs, "outputs": found.outputs}
        choices = (
            f", {found.choices - found.other_choices:,} of {found.choices:,} choices alike" if found.choices else ""
        )
        say(f"{weights.GRAPH}: largest difference from torch on random inputs {found.difference:.2g}{choices}")
    versions = {"zerobeast": __version__, "python": platform.python_version(), **dict(_versions())}
    with _new(out) as folder:
        if "safetensors" in kinds:
            about = {"zerobeast": __version__, "env": config.env.id, "algo": config.section}
            weights.write(folder / weights.WEIGHTS, policy, **about, agent_steps=str(policy.agent_steps))
        if model:
            (folder / weights.GRAPH).write_bytes(model)
        if video is not None:
            shutil.copyfile(video, folder / f"replay{video.suffix}")
        text = weights.describe(policy, versions=versions, evaluations=list(rows), **({"onnx": ends} if ends else {}))
        (folder / weights.CONFIG).write_text(text, encoding="utf-8")
        files = [path.name for path in folder.iterdir()]
        card = Card(config, policy.env, policy.agent_steps, rows, versions, files, tuple(ends.values()))
        (folder / weights.CARD).write_text(card.text(), encoding="utf-8")
    return out


def refuse_present(out: Path) -> None:
    """Raise ConfigError if something is in the way of a new folder."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} is there already: expected a new folder")


def video_of(run: Path, agent_steps: int) -> Path | None:
    """The video of a run's policy after so many agent steps, or else its newest one, if it has any."""
    found = run_files.videos(run)
    return max(found, key=lambda path: (path.stem == str(agent_steps), path.stat().st_mtime_ns), default=None)


def _versions() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


@contextmanager
def _new(out: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name at the end; of one that cannot be filled nothing is left."""
    draft = out.with_name(f".{out.name}.new")
    try:
        shutil.rmtree(draft, ignore_errors=True)  # left by a process that was killed
        draft.mkdir(parents=True)
        yield draft
        draft.rename(out)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
