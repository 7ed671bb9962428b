"""`beast evaluate RUN`: whole episodes of the saved policy, in environments of their own.

Exactly N episodes are counted, and how many each environment contributes is settled before the first step:
counting the first N that end would prefer short ones. Returns are unclipped; a life is not an episode.

Actions are drawn from the policy, as in training: that is the policy whose return was optimised, and if only the
no-op starts differ, a greedy one would play nearly the same Atari game N times. --greedy asks for the greedy one. It
is the default of algorithms whose drawn actions are exploration: DQN and its kin, DDPG and TD3.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zerobeast.clients.env_client import EnvClient
from zerobeast.common.config.load import gather
from zerobeast.common.config.trust import ALONE
from zerobeast.common.errors import BeastError, ConfigError, PeerLost
from zerobeast.common.files import run_files
from zerobeast.common.settings.section import Section, setting
from zerobeast.common.settings.tree import RunConfig
from zerobeast.common.transport import Context
from zerobeast.launcher.child import Child, ChildSpec, stop
from zerobeast.launcher.fleet import child_environ, child_flags, endpoint_flags, service_command
from zerobeast.launcher.private_folder import private_folder
from zerobeast.launcher.run_folder import trained

HELP = """beast evaluate RUN [--episodes N] [--seed S] [--greedy] [--json] [settings]

  RUN            name of a run, or the path of its folder
  --episodes N   whole episodes to play, 10 by default
  --seed S       of environments and actions, 1000 by default: not the one that was trained on
  --greedy       take the likeliest or best action: the default where drawing is exploration (DQN, R2D2, TD3, ...)
  --sample       draw actions as in training after its first random steps: the default of all others
  --json         print one JSON object instead of a table; a run of several environments has one of each

Settings of the run can be changed for the evaluation, such as --broker.device cpu or --env.sticky_actions 0.25.
"""
MAX_ENVS = 16
START_LIMIT_S = 60.0
STOP_LIMIT_S = 5.0
JSON = "--json"


class EvaluateFlags(Section):
    """Flags of the command itself."""

    episodes: int = setting(10, "whole episodes to play", ge=1, le=1_000_000)
    seed: int = setting(1000, "of environments and actions", ge=0, le=2**31 - 1)
    greedy: bool = setting(default=False, meaning="take the likeliest or best action")
    sample: bool = setting(default=False, meaning="draw actions as in training")


class Episode(NamedTuple):
    value: float  #: undiscounted, unclipped return
    length: int  #: agent steps


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
    as_json = JSON in argv
    folder, config, flags = _settle(argv[0], [flag for flag in argv[1:] if flag != JSON], os.environ)
    if flags.greedy and flags.sample:
        raise ConfigError("--greedy and --sample exclude each other")
    with env_server(folder, config) as endpoint:
        for task in config.env.tasks:
            result = {"run": folder.name, **_play(folder, config, task, flags, endpoint, quiet=as_json)}
            sys.stdout.write(json.dumps(result) + "\n" if as_json else _conclusion(result))
    return 0


def _settle(run: str, argv: list[str], environ: Mapping[str, str]) -> tuple[Path, RunConfig, EvaluateFlags]:
    """Find the run and read its settings under the flags."""
    root = gather(argv, environ, own=EvaluateFlags).config.root
    candidates = [Path(run).expanduser(), Path(root).expanduser() / run]
    folder = next((path for path in reversed(candidates) if (path / run_files.CONFIG).is_file()), None)
    if folder is None:
        raise ConfigError(
            f"there is no run {run!r}: expected {candidates[-1] / run_files.CONFIG}; --root names another folder"
        )
    if not trained(folder):
        raise ConfigError(f"run {run!r} has no checkpoint yet: let it train for a while")
    loaded = gather(["--config", str(folder / run_files.CONFIG), *ALONE, *argv], environ, own=EvaluateFlags)
    env = loaded.config.env.model_copy(update={"episodic_life": False})
    return folder.resolve(), loaded.config.model_copy(update={"env": env}), loaded.own


@contextmanager
def env_server(folder: Path, config: RunConfig) -> Iterator[str]:
    """Run an env-server until the context is left.

    Yields:
      Its endpoint.

    Raises:
      BeastError: it ended, for the reason in its log.
    """
    with private_folder() as place:
        endpoint = list(endpoint_flags(place, 0))
        status, log = place / "status.json", place / "log"
        flags = [
            *child_flags(config, folder / run_files.CONFIG, status),
            *ALONE,
            *endpoint,
            *("--envserver.threads", str(config.envserver.threads)),
            *("--envserver.workers", str(config.envserver.workers)),
        ]
        command = service_command("envserver", *flags)
        child = Child(ChildSpec("envserver", 0, command, child_environ(os.environ), log, status))
        child.start()
        try:
            _wait_for(status, child)
            yield endpoint[1]
        except PeerLost as error:
            raise (BeastError(child.explain()) if child.poll() is not None else error) from error
        finally:
            stop([child], STOP_LIMIT_S)


def _wait_for(status: Path, child: Child) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not status.exists():
        if child.poll() is not None:
            error = BeastError(child.explain())
            error.exit_code = 2 if child.code == 2 else 1
            raise error
        if time.monotonic() > deadline:
            raise PeerLost(f"the env-server did not start within {START_LIMIT_S:.0f} s")
        time.sleep(0.01)


def _play(
    folder: Path, config: RunConfig, task: str, flags: EvaluateFlags, endpoint: str, *, quiet: bool
) -> dict[str, Any]:
    from zerobeast.clients.player import Player

    num_envs = min(flags.episodes, MAX_ENVS)
    env, limit_s = config.env.alone(task).model_dump(), START_LIMIT_S + config.envserver.step_timeout_s
    with Context() as context, EnvClient(context, endpoint, env, num_envs, flags.seed, limit_s) as envs:
        greedy = flags.greedy or (False if flags.sample else None)
        player = Player(folder, envs.spec, num_envs, seed=flags.seed, greedy=greedy, config=config)
        counter = EpisodeCounter(quotas(flags.episodes, num_envs))
        rows = envs.reset()
        while not counter.complete:
            rows, *_ = envs.step(player.act(rows))
            episodes = counter.add(rows)
            if not quiet:
                _announce(episodes, counter)
    return describe(counter.episodes, envs.spec.frame_skip) | {
        "env": envs.spec.env_id,
        "agent_steps_trained": player.agent_steps,
        "actions": "greedy" if player.greedy else "sampled",
        "seed": flags.seed,
    }


def quotas(episodes: int, num_envs: int) -> NDArray[np.int64]:
    """How many episodes each environment contributes: equal, but for the remainder. [num_envs]."""
    return np.full(num_envs, episodes // num_envs) + (np.arange(num_envs) < episodes % num_envs)


class EpisodeCounter:
    """Adds up rewards and keeps the first `quota` [N] episodes of every environment."""

    def __init__(self, quota: NDArray[np.int64]) -> None:
        self.episodes: list[Episode] = []
        self._left = quota.copy()
        self._value = np.zeros(len(quota))
        self._length = np.zeros(len(quota), np.int64)

    @property
    def complete(self) -> bool:
        """Whether every environment has filled its quota."""
        return not self._left.any()

    def add(self, rows: NDArray[Any]) -> list[Episode]:
        """Take one step's rows, [N] of `step_record`; return the episodes that it completes and that count."""
        self._value = np.where(rows["first"], 0.0, self._value + rows["reward"])
        self._length = np.where(rows["first"], 0, self._length + 1)
        ended = (rows["terminated"] | rows["truncated"]) & (self._left > 0)
        self._left -= ended
        found = [Episode(float(self._value[i]), int(self._length[i])) for i in np.flatnonzero(ended)]
        self.episodes += found
        return found


def describe(episodes: list[Episode], frame_skip: int) -> dict[str, Any]:
    """Every episode, and statistics over all of them."""
    returns, lengths = [episode.value for episode in episodes], [episode.length for episode in episodes]
    return {
        "episodes": len(episodes),
        "mean_return": statistics.fmean(returns),
        "std_return": statistics.pstdev(returns),
        "min_return": min(returns),
        "max_return": max(returns),
        "mean_length": statistics.fmean(lengths),
        "mean_length_frames": statistics.fmean(lengths) * frame_skip,
        "returns": returns,
        "lengths": lengths,
    }


def _announce(episodes: list[Episode], counter: EpisodeCounter) -> None:
    number = len(counter.episodes) - len(episodes)
    if number == 0 and episodes:
        sys.stdout.write("episode      return  agent steps\n")
    for offset, episode in enumerate(episodes, start=1):
        sys.stdout.write(f"{number + offset:7}  {episode.value:10.2f}  {episode.length:11,}\n")
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
