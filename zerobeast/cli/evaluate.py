"""`beast evaluate RUN`: whole episodes of the saved policy, in environments of their own."""

import json
import sys
import time
from typing import Any

from zerobeast import commands
from zerobeast.api.saved import find, open_policy, opponent_of
from zerobeast.common.errors import ConfigError
from zerobeast.common.files import run_files
from zerobeast.common.process.terminal import write
from zerobeast.common.wire.episodes import Episode
from zerobeast.launcher.env_server import env_server
from zerobeast.services.envserver.levels import evaluated
from zerobeast.services.evaluator.play import play
from zerobeast.services.evaluator.results import Evaluation

HELP = """beast evaluate RUN [--episodes N] [--seed S] [--greedy | --sample] [--max_steps N] [--levels A,B]
                   [--opponent O] [--json] [settings]

  RUN            name of a run, the path of its folder, or a checkpoint: RUN:best, RUN:AGENT_STEPS or a file
  --episodes N   whole episodes to play, 10 by default
  --seed S       of environments and actions: with the same one, any run gets the same ones; by default one that follows
                 from the run's, with which its evaluations while it was trained were played
  --greedy       take the likeliest or best action: the default, unless the run has evaluate.actions sampled
  --sample       draw actions as in training after its first random steps
  --max_steps N  cut an episode off after this many agent steps and count it, 30,000 by default
  --levels A,B   environments to play in instead of the run's own: some of these by the ends of their ids, levels such
                 as rare by their names, or others with equal spaces by their ids; by default those that the run was
                 evaluated in, unless --env is given
  --opponent O   RUN, RUN:best, RUN:AGENT_STEPS or a path: who acts for the other side, in environments of several
                 agents; without it, the policy acts for all. `win` is the share of games won, a draw counts half
  --json         print one JSON object instead of a table; a run of several environments has one of each

Settings of the run can be changed for the evaluation, such as --broker.device cpu or --env.sticky_actions 0.25.
"""
JSON = "--json"
#: short names of settings
SHORT = {f"--{name}": f"--evaluate.{name}" for name in ("episodes", "levels", "seed", "max_steps")}
SHORT |= {"--opponent": "--env.opponent"}
ACTIONS = {"--greedy": "--evaluate.actions=greedy", "--sample": "--evaluate.actions=sampled"}
QUIET_S = 5.0  #: between two lines about the progress while no episode ends


def main(argv: list[str]) -> int:
    """Run `beast evaluate`. Raises BeastError if the run cannot be evaluated."""
    run, given = commands.about(argv, HELP)
    flags, as_json = [spelt_out(flag) for flag in given if flag != JSON], JSON in given
    if set(ACTIONS.values()) <= set(flags):
        raise ConfigError("--greedy and --sample exclude each other")
    policy = open_policy(place := find(run, flags), flags)
    config = policy.config
    opponent = opponent_of(config, flags)
    with env_server(config) as endpoint:
        for task in evaluated(config):
            alone = config.model_copy(update={"env": config.env.alone(task)})
            found = play(
                policy, alone, endpoint, opponent=opponent, watch=_Announcer(config.evaluate.episodes, rows=not as_json)
            )
            result = {"run": place.name if run_files.is_run(place) else str(place), **described(found)}
            write(json.dumps(result) if as_json else _conclusion(result, config.evaluate.episodes))
    return 0


def spelt_out(flag: str) -> str:
    """A flag with the full name of its setting."""
    name, equals, value = flag.partition("=")
    return ACTIONS.get(flag) or SHORT.get(name, name) + equals + value


def described(found: Evaluation) -> dict[str, Any]:
    """Every episode, statistics over all of them, and how they were played."""
    row = found.row()
    return {
        **{name: value for name, value in row.items() if name not in ("agent_steps", "env_frames")},
        "std_return": found.std,
        "mean_length_frames": found.length * found.frame_skip,
        "agent_steps_trained": found.agent_steps_trained,
        "lost_to": found.lost_to if found.lost else "",
    }


class _Announcer:
    """Prints a line for each episode, and one now and then while none ends, if a terminal or a log shows stderr."""

    def __init__(self, episodes: int, *, rows: bool) -> None:
        self._all, self._rows, self._done = episodes, rows, 0
        self._quiet_until = time.monotonic() + QUIET_S

    def __call__(self, episodes: list[Episode], steps: int) -> None:
        for episode in episodes:
            if self._rows and not self._done:
                write("episode      return  agent steps")
            self._done += 1
            if self._rows:
                write(f"{self._done:7}  {episode.value:10.2f}  {episode.length:11,}")
        now = time.monotonic()
        if episodes and self._rows:
            self._quiet_until = now + QUIET_S
        elif now > self._quiet_until:
            self._quiet_until = now + QUIET_S
            write(f"{self._done} of {self._all} episodes, {steps:,} agent steps", sys.stderr)


def _conclusion(result: dict[str, Any], wanted: int) -> str:
    trained = f"{result['run']} after {result['agent_steps_trained']:,} agent steps, {result['env']}"
    done = result["episodes"]
    played = f"{done} episodes" if done > 1 else "1 episode"
    if done < wanted:  # an environment plays on after an episode that ends, but not after one that is cut off
        played = f"{done} of {wanted} episodes"
    error = "" if result["stderr_return"] is None else f" (standard error {result['stderr_return']:.2f})"
    infos = "".join(f", {name[5:]} {value:.4g}" for name, value in result.items() if name.startswith("info/"))
    cut = f", {result['bounded']} cut off at evaluate.max_steps" if result["bounded"] else ""
    cut += f", {result['lost']} more lost to {result['lost_to']}" if result["lost"] else ""
    return (
        f"{trained}, {result['actions']} actions, {played}{cut}:\n"
        f"return {result['mean_return']:.2f}{error}, interquartile mean {result['iqm_return']:.2f}, "
        f"from {result['min_return']:.2f} to {result['max_return']:.2f}\n"
        f"length {result['mean_length']:,.0f} agent steps = {result['mean_length_frames']:,.0f} env frames{infos}"
    )
