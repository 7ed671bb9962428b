"""Export a trained policy as a folder, in the layout of the Hugging Face hub; nothing in it is pickled.

    README.md            the model card
    model.safetensors    the parameters          if asked for
    model.onnx           the acting step         if asked for
    config.json          settings, environment, versions, evaluations
    replay.mp4           a video, if there is one; the hub shows it beside the card

It appears whole or not at all.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from zerobeast.api.policies import evaluate, load
from zerobeast.common.config import confirmations, trust
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import evaluations, run_files
from zerobeast.common.files.atomic import explain_os_errors
from zerobeast.common.files.evaluations import Row
from zerobeast.common.text import did_you_mean, without_folders
from zerobeast.exporting import weights
from zerobeast.exporting.card import format_card
from zerobeast.version import __version__

if TYPE_CHECKING:
    from zerobeast.exporting.graph import Graph
    from zerobeast.playing.policy import Policy

KINDS = ("safetensors", "onnx")
#: packages that matter to a policy
PACKAGES = ("torch", "numpy", "gymnasium", "ale-py", "MinAtar", "mujoco", "Box2D", "envpool")
#: how a policy is loaded for that: in full precision, on the device that traces graphs
EXPORT_SETTINGS = {"broker": {"device": "cpu", "precision": "float32"}}


def export(
    run: str | os.PathLike[str],
    out: str | Path | None = None,
    to: str = KINDS[0],
    *,
    episodes: int = 0,
    algo: Any = None,
    say: Callable[[str], None] = lambda _: None,
    **settings: Any,
) -> Path:
    """Write the policy of a run into a new folder; `load` reads it.

    The card has the run's own evaluation of this policy, and the folder its video, if there are any.

    Args:
      run: as for `load`.
      out: the folder; None: `export-<agent steps>` in that of the run.
      to: "safetensors", "onnx", or both with a comma.
      episodes: how many to evaluate it with now, instead.
      algo, settings: as for `load`.
      say: takes lines about what is written.

    Returns:
      The folder.

    Raises:
      BeastError: the run cannot be loaded, evaluated or exported, for the reason it gives.

    Examples:
      >>> import zerobeast as zb
      >>> folder = zb.export("cart", "cart-policy")
      >>> sorted(file.name for file in folder.iterdir())
      ['README.md', 'config.json', 'model.safetensors']
      >>> zb.load(folder)
      <Policy of CartPole-v1, ppo, after 2,000 agent steps>
    """
    return export_policy(load(run, algo=algo, **{**settings, **EXPORT_SETTINGS}), out, to, episodes=episodes, say=say)


def export_policy(
    policy: Policy, out: str | Path | None, to: str, *, episodes: int, say: Callable[[str], None]
) -> Path:
    """As `export`, of a policy that is loaded."""
    kinds = [kind.strip() for kind in to.split(",")]
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise ConfigError(
            argument="to", value=unknown[0], expected=f"{' or '.join(KINDS)}{did_you_mean(unknown[0], KINDS)}"
        )
    run = run_files.saver_of(policy.checkpoint)
    by_default = (run or policy.checkpoint.parent) / f"export-{policy.agent_steps}"
    place = Path(out).expanduser().resolve() if out else by_default
    if place.exists():
        raise ConfigError(f"{place} already exists: expected a new folder")
    steps, kind = policy.agent_steps, policy.config.evaluate.actions
    if episodes:
        rows = [evaluate(policy, task, episodes).row() for task in policy.config.env.tasks]
    else:
        found = evaluations.filter_by_actions(evaluations.read_evaluations(run or place), kind)
        best = {"best_of": len({row["agent_steps"] for row in found})} if run_files.is_best(policy.checkpoint) else {}
        rows = [row | best for row in found if row["agent_steps"] == steps and row.get("returns")]
    rows = [row | {name: without_folders(row[name]) for name in evaluations.TEXTS if row.get(name)} for row in rows]
    if not rows:
        say("the card has no evaluation, because the run has none of this policy: --episodes 10 evaluates it now")
    graph = _graph(policy, say) if "onnx" in kinds else None
    with explain_os_errors(f"{place} cannot be written"):
        place.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".export-", dir=place.parent) as temporary:
            folder = Path(temporary, place.name)
            folder.mkdir()
            for video in run_files.list_videos(run or place):
                if video.stem == evaluations.video_path(steps, kind).stem:
                    shutil.copyfile(video, folder / f"replay{video.suffix}")
            _fill(folder, policy, rows, graph, with_weights="safetensors" in kinds)
            folder.rename(place)
    refused, values = trust.refusals_of(policy.config, policy.in_files), trust.decisive_values(policy.config)
    confirmations.remember(place, {path: value for path, value in values.items() if path not in refused})
    return place


def _graph(policy: Policy, say: Callable[[str], None]) -> Graph:
    from zerobeast.exporting import graph

    found = graph.export_graph(policy)
    say(f"{weights.GRAPH}: largest difference from torch on random inputs {found.difference:.2g}")
    if not policy.config.evaluate.greedy:
        say(f"{weights.GRAPH}: its actions are greedy, but the evaluations use sampled ones (evaluate.actions)")
    return found


def _fill(folder: Path, policy: Policy, rows: list[Row], graph: Graph | None, *, with_weights: bool) -> None:
    if with_weights:
        weights.write_weights(folder / weights.WEIGHTS, policy)
    ends: dict[str, dict[str, str]] = {}
    if graph:
        (folder / weights.GRAPH).write_bytes(graph.model)
        ends = {"inputs": graph.inputs, "outputs": graph.outputs}
    versions = {"zerobeast": __version__, "python": platform.python_version()}
    versions |= {each.name: each.version for each in distributions() if each.name in PACKAGES}
    about = weights.describe_policy(policy, versions=versions, evaluations=rows, onnx=ends)
    (folder / weights.CONFIG).write_text(about, encoding="utf-8")
    text = format_card(policy, rows, versions, ends, with_weights=with_weights)
    (folder / weights.CARD).write_text(text, encoding="utf-8")
