"""`beast evaluate RUN`: whole episodes of the saved policy, in environments of their own.

Exactly N episodes are counted, and how many each environment contributes is settled before the first step:
counting the first N that end would prefer short ones. Returns are unclipped; a life is not an episode.

Actions are drawn from the policy, as in training: that is the policy whose return was optimised, and if only the
no-op starts differ, a greedy one would play nearly the same Atari game N times. --greedy asks for the greedy one. It
is the default of algorithms whose drawn actions are exploration: DQN and its kin, DDPG and TD3.
"""

import json
import statistics
import sys
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

from zerobeast.api.saved import Episode, Evaluation, env_server, find, open_policy, play
from zerobeast.common.errors import ConfigError
from zerobeast.common.settings import Section, setting

HELP = """beast evaluate RUN [--episodes N] [--seed S] [--greedy] [--json] [settings]

  RUN            name of a run, or the path of its folder
  --episodes N   whole episodes to play, 10 by default
  --seed S       of environments and actions, 1000 by default: not the one that was trained on
  --greedy       take the likeliest or best action: the default where drawing is exploration (DQN, R2D2, TD3, ...)
  --sample       draw actions as in training after its first random steps: the default of all others
  --json         print one JSON object instead of a table; a run of several environments has one of each

Settings of the run can be changed for the evaluation, such as --broker.device cpu or --env.sticky_actions 0.25.
"""
JSON = "--json"


class EvaluateFlags(Section):
    """Flags of the command itself."""

    episodes: int = setting(10, "whole episodes to play", ge=1, le=1_000_000)
    seed: int = setting(1000, "of environments and actions", ge=0, le=2**31 - 1)
    greedy: bool = setting(default=False, meaning="take the likeliest or best action")
    sample: bool = setting(default=False, meaning="draw actions as in training")


def main(argv: list[str]) -> int:
    """Run `beast evaluate`; returns the exit code.

    Raises:
      BeastError: the run cannot be evaluated, for the reason it gives.
    """
    if any(flag in ("-h", "--help") for flag in argv):
        sys.stdout.write(HELP)
        return 0
    if not argv or argv[0].startswith("-"):
        raise ConfigError("which run? beast evaluate RUN [--episodes N]; --help explains")
    run, flags, as_json = argv[0], [flag for flag in argv[1:] if flag != JSON], JSON in argv
    policy = open_policy(place := find(run, flags, EvaluateFlags), flags, own=EvaluateFlags)
    config, own = policy.config, policy.loaded.own
    if own.greedy and own.sample:
        raise ConfigError("--greedy and --sample exclude each other")
    how = {"episodes": own.episodes, "seed": own.seed, "deterministic": own.greedy or (False if own.sample else None)}
    with env_server(config) as endpoint:
        for task in config.env.tasks:
            alone = config.model_copy(update={"env": config.env.alone(task)})
            watch = (lambda _: None) if as_json else partial(_announce, count(1))
            found = play(policy, alone, endpoint, **how, watch=watch)
            result = {"run": place.name, **describe(found)}
            sys.stdout.write(json.dumps(result) + "\n" if as_json else _conclusion(result))
    return 0


def describe(found: Evaluation) -> dict[str, Any]:
    """Every episode, statistics over all of them, and how they were played."""
    return {
        "episodes": len(found.returns),
        "mean_return": found.mean,
        "std_return": found.std,
        "min_return": min(found.returns),
        "max_return": max(found.returns),
        "mean_length": (length := statistics.fmean(found.lengths)),
        "mean_length_frames": length * found.frame_skip,
        "returns": found.returns,
        "lengths": found.lengths,
        "env": found.env,
        "agent_steps_trained": found.agent_steps_trained,
        "actions": "greedy" if found.deterministic else "sampled",
        "seed": found.seed,
    }


def _announce(numbers: Iterator[int], episodes: list[Episode]) -> None:
    """Print a line for each of these episodes, numbered on."""
    for episode, number in zip(episodes, numbers, strict=False):
        head = "episode      return  agent steps\n" if number == 1 else ""
        sys.stdout.write(f"{head}{number:7}  {episode.value:10.2f}  {episode.length:11,}\n")
    sys.stdout.flush()


def _conclusion(result: dict[str, Any]) -> str:
    trained = f"{result['run']} after {result['agent_steps_trained']:,} agent steps, {result['env']}"
    played = "1 episode" if result["episodes"] == 1 else f"{result['episodes']} episodes"
    return (
        f"{trained}, {result['actions']} actions, {played}:\n"
        f"return {result['mean_return']:.2f} +/- {result['std_return']:.2f} "
        f"(from {result['min_return']:.2f} to {result['max_return']:.2f}), "
        f"length {result['mean_length']:,.0f} agent steps = {result['mean_length_frames']:,.0f} env frames\n"
    )
