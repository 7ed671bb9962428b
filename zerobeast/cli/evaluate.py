"""Evaluate the policy of a run in whole episodes, in separate environments.

RUN is the name of a run, the path of its folder, or a checkpoint: RUN:best, RUN:AGENT_STEPS or a file. The defaults are
the run's `evaluate` settings: if unchanged, 10 episodes of up to 30,000 agent steps with greedy actions. Without
--seed, the episodes are the same every time, but differ from those of the run's own evaluations, which selected
RUN:best. With the same --seed, every run gets the same environments and random numbers. Up to 16 environments are
stepped at a time, and episodes are listed in the order in which they end. Levels are those of the run, unless --env is
given. With --opponent, that run acts for the other side; `win` is the share of games won, and a draw counts half.

Every setting of the run is a flag here too, such as --broker.device cpu or --env.sticky_actions 0.25.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any

from zerobeast import commands
from zerobeast.api.policies import find_policy, open_policy, play_evaluations, reseed_evaluations
from zerobeast.common.config.layers import GivenValue
from zerobeast.common.config.request import Request
from zerobeast.common.config.settings_table import TREE
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.process.terminal import write
from zerobeast.common.wire.episodes import Episode
from zerobeast.playing.evaluation import Evaluation

QUIET_S = 5.0  #: between two lines about the progress while no episode ends


def main(argv: list[str]) -> int:
    """Run `beast evaluate`. Raises BeastError if the run cannot be evaluated."""
    parser = commands.make_parser("beast evaluate", __doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object per environment instead of a table")
    own, request = parse_play_flags(parser, argv, "evaluate.episodes", "env.opponent")
    policy = open_policy(place := find_policy(own.run, request.value("root")), request)
    episodes = policy.config.evaluate.episodes
    for found in play_evaluations(
        policy, reseed_evaluations(policy), request, lambda: _Announcer(episodes, rows=not own.json)
    ):
        result = {"run": place.name if run_files.is_run(place) else str(place), **evaluation_to_dict(found)}
        write(json.dumps(result) if own.json else _conclusion(result, episodes))
    return 0


def parse_play_flags(
    parser: argparse.ArgumentParser, argv: list[str], *more: str
) -> tuple[argparse.Namespace, Request]:
    """The arguments of a command that plays episodes, and a request with the settings among them.

    Args:
      parser: has what is the command's own.
      argv: of the command.
      more: paths of settings that it has as flags by their last names, beside those that all such commands have.
    """
    parser.add_argument("run", metavar="RUN", help="name of a run, its folder, or a checkpoint: see above")
    add = partial(parser.add_mutually_exclusive_group().add_argument, dest="evaluate.actions", action="store_const")
    add("--greedy", const="greedy", help="take the most likely or best actions")
    add("--sample", const="sampled", help="sample actions as in training after the initial random steps")
    for path in (*more, "evaluate.levels", "evaluate.max_steps", "evaluate.seed"):
        parser.add_argument(f"--{path.partition('.')[2]}", dest=path, metavar="VALUE", help=TREE[path].description)
    own, flags = parser.parse_known_args(argv)
    request = Request.of_flags(flags, os.environ)
    if request.value("deterministic") is not None:
        raise ConfigError(
            "--deterministic applies to training; expected --greedy, which takes the most likely or best actions",
            path="deterministic",
        )
    asked = {path: value for path, value in vars(own).items() if path in TREE and value is not None}
    given = [GivenValue(path, value, f"flag --{path}") for path, value in asked.items()]
    return own, replace(request, settings=[*request.settings, *given])


def evaluation_to_dict(found: Evaluation) -> dict[str, Any]:
    """Every episode, statistics over all of them, and how they were played."""
    row = found.row()
    return {
        **{name: value for name, value in row.items() if name not in ("agent_steps", "env_frames")},
        "std_return": found.std,
        "mean_length_frames": found.length * found.frame_skip,
        "agent_steps_trained": found.agent_steps_trained,
        "lost_to": found.lost_to,
    }


class _Announcer:
    """Prints a line for each episode, and one now and then while none ends, if a terminal or a log shows stderr."""

    def __init__(self, episodes: int, *, rows: bool) -> None:
        self._all, self._rows, self._done = episodes, rows, 0
        self._quiet_until = time.monotonic() + QUIET_S

    def __call__(self, episodes: list[Episode], steps: int) -> None:
        for episode in episodes:
            self._done += 1
            if self._rows:
                heading = "episode      return  agent steps\n" * (self._done == 1)
                write(f"{heading}{self._done:7}  {episode.value:10.2f}  {episode.length:11,}")
        now = time.monotonic()
        if episodes and self._rows:
            self._quiet_until = now + QUIET_S
        elif now > self._quiet_until:
            self._quiet_until = now + QUIET_S
            write(f"{self._done} of {self._all} episodes, {steps:,} agent steps", sys.stderr)


def _conclusion(result: dict[str, Any], wanted: int) -> str:
    trained = f"{result['run']} after {result['agent_steps_trained']:,} agent steps, {result['env']}"
    done = result["episodes"]
    # fewer than wanted: an environment plays on after an episode that ends, but not after one that is cut off
    played = f"{done} of {wanted} episodes" if done < wanted else f"{done} episode{'s' * (done > 1)}"
    error = "" if result["stderr_return"] is None else f" (standard error {result['stderr_return']:.2f})"
    infos = "".join(f", {name[5:]} {value:.4g}" for name, value in result.items() if name.startswith("info/"))
    cut = f", {result['bounded']} cut off at evaluate.max_steps" if result["bounded"] else ""
    cut += f", {result['lost']} lost to failures and replayed: {result['lost_to']}" if result["lost"] else ""
    return (
        f"{trained}, {result['actions']} actions, {played}{cut}:\n"
        f"return {result['mean_return']:.2f}{error}, interquartile mean {result['iqm_return']:.2f}, "
        f"from {result['min_return']:.2f} to {result['max_return']:.2f}\n"
        f"length {result['mean_length']:,.0f} agent steps = {result['mean_length_frames']:,.0f} env frames{infos}"
    )
