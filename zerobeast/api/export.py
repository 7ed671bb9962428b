"""Hand a trained policy on, as a folder: see `zerobeast.exporting`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerobeast.api.saved import evaluate, load
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import evaluations, run_files
from zerobeast.common.files.evaluations import Row
from zerobeast.common.text import did_you_mean
from zerobeast.exporting import folder
from zerobeast.exporting.folder import KINDS

if TYPE_CHECKING:
    from zerobeast.api.run import Run
    from zerobeast.clients.policy import Policy

#: how a policy is loaded for that: in full precision, where graphs are traced
HOW = {"broker.device": "cpu", "broker.precision": "float32"}


def export(
    run: str | os.PathLike[str] | Run,
    out: str | Path | None = None,
    to: str = KINDS[0],
    *,
    episodes: int = 0,
    algo: Any = None,
    say: Callable[[str], None] = lambda _: None,
    **settings: Any,
) -> Path:
    """Write the policy of a run into a new folder, in the layout of the Hugging Face hub; `load` reads it.

    Args:
      run: as for `load`.
      out: the folder; None: `export-<agent steps>` in that of the run.
      to: "safetensors", "onnx", or both with a comma.
      episodes: how many to evaluate it with now; 0: the card has the run's own evaluation, if there is one.
      algo, settings: as for `load`.
      say: takes lines about what is written.

    Returns:
      The folder.

    Raises:
      BeastError: the run cannot be loaded, evaluated or exported, for the reason it gives.
    """
    kinds = kinds_of(to)
    return hand_on(load(run, algo=algo, **settings, **HOW), kinds, out, episodes=episodes, say=say)


def kinds_of(text: str) -> Sequence[str]:
    """What `to` names. Raises ConfigError if that is nothing that there is."""
    kinds = [kind.strip() for kind in text.split(",")]
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"to is {kind!r}, expected {' or '.join(KINDS)}{did_you_mean(kind, KINDS)}")
    return kinds


def hand_on(
    policy: Policy, kinds: Sequence[str], out: str | Path | None, *, episodes: int, say: Callable[[str], None]
) -> Path:
    """As `export`, of a policy that is loaded."""
    run = run_files.folder_of(policy.checkpoint) or policy.checkpoint.parent
    place = Path(out).expanduser() if out else run / f"export-{policy.agent_steps}"
    folder.refuse_present(place)
    if episodes:
        rows = [evaluate(policy, task, episodes).row() for task in policy.config.env.tasks]
    else:
        rows = of_policy(evaluations.read(run), policy.agent_steps)
    if not rows:
        say("the card has no evaluation, because the run has none: --episodes 10 plays some")
    elif rows[0]["agent_steps"] != policy.agent_steps:
        of = f"{rows[0]['agent_steps']:,} agent steps, not {policy.agent_steps:,}"
        say(f"the evaluation on the card is of the policy after {of}: --episodes 10 plays some with this one")
    return folder.export(policy, place, kinds, rows=rows, video=folder.video_of(run, policy.agent_steps), say=say)


def of_policy(rows: Sequence[Row], agent_steps: int) -> list[Row]:
    """Of a run's evaluations those of the policy after so many agent steps, or else the newest: one per environment."""
    steps = {row["agent_steps"] for row in rows}
    chosen = agent_steps if agent_steps in steps else max(steps, default=0)
    return list({row["env"]: row for row in rows if row["agent_steps"] == chosen}.values())
