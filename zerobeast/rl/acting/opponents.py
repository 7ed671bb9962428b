"""Who acts for the other side: the policies that an environment's opponent is drawn from when an episode begins."""

from __future__ import annotations

import json
import logging
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import BeastError, CheckpointError, ConfigError, RemoteProtocolError, raise_as
from zerobeast.common.files import run_files
from zerobeast.common.process.terminal import write
from zerobeast.common.settings import NO_RUN, PAST_OPPONENT, RunConfig
from zerobeast.common.wire import EnvSpec
from zerobeast.rl.acting.inference import Inference
from zerobeast.rl.nets.checkpoint import load_checkpoint

log = logging.getLogger(__name__)

MAX_PAST_VERSIONS = 4  #: versions that games are played against at a time
RENEW_S = 10.0  #: between two versions that take the place of others
LOOK_S = 0.5  #: between two looks for new ones
MISMATCH_NOTE = "the opponent needs the same environment, algorithm and network"


def load_opponent(run: str, root: str, env: EnvSpec) -> tuple[Path, dict[str, Any]]:
    """The checkpoint that `env.opponent` names.

    Raises:
      ConfigError: there is none, or it is of another environment.
      CheckpointError: it cannot be read.
    """
    place = run_files.find_run_or_checkpoint(run, root)
    path = place / run_files.CHECKPOINT if place.is_dir() else place
    if (saved := load_checkpoint(path)) is None:
        raise ConfigError(f"env.opponent {run}: it has no checkpoint yet", path="env.opponent", value=run)
    with raise_as(CheckpointError, str(path), RemoteProtocolError):
        theirs = EnvSpec.from_wire(saved["env"])
    if theirs != env:
        name, found, expected = theirs.difference(env)
        sentence = f"env.opponent {run}: its {name} is {found}, expected {expected}: {MISMATCH_NOTE}"
        raise ConfigError(sentence, path="env.opponent", value=run, expected=MISMATCH_NOTE)
    return path, saved


def main(run: str, root: str) -> int:
    """`python -m zerobeast.services.broker opponent RUN ROOT`: check it for the environment that stdin describes."""
    try:
        load_opponent(run, root, EnvSpec.from_wire(json.load(sys.stdin)))
    except BeastError as error:
        write(str(error), sys.stderr)
        return error.exit_code
    return 0


class Opponents:
    """The policies that play against the newest one, as networks of an `Inference`, by number; 0 is the newest itself.

    Args:
      config: of the run.
      policy: holds the networks.
      now: seconds, as everywhere here.

    Raises:
      ConfigError: `env.opponent` names a run that does not fit.
    """

    def __init__(self, config: RunConfig, policy: Inference, now: float) -> None:
        self._config, self._policy = config, policy
        self.steps = {0: 0}  #: agent steps of each policy by number; of the newest 0
        self._random = random.Random()  # noqa: S311 - no secret
        self._renew_at = now
        self._leaving = 0  #: the one that is replaced as soon as no game needs it
        self._useless: set[int] = set()  #: agent steps of past versions that cannot be read
        name = config.env.opponent
        if name == PAST_OPPONENT and not run_files.is_run(config.folder):
            log.warning(
                "env.opponent past: no run in %s yet; until it is there on this machine, the newest policy plays the "
                "other side",
                config.folder,
            )
        if name not in NO_RUN:
            with raise_as(ConfigError, f"env.opponent {name}: {MISMATCH_NOTE}", CheckpointError):
                self._put(1, *load_opponent(name, config.root, policy.algorithm.env))

    def draw(self) -> int:
        """One of the policies, the newest only if there is no other."""
        numbers = [number for number in self.steps if number not in (0, self._leaving)]
        return self._random.choice(numbers or [0])

    def renew(self, now: float, games: Iterable[Games]) -> None:
        """Read another past version, if it is time, in place of one that none of these games needs.

        Nothing is answered meanwhile: 0.3 s for each 100 MB, at most every RENEW_S once there are MOST_PAST.
        """
        if self._config.env.opponent != PAST_OPPONENT or now < self._renew_at:
            return
        known = {*self.steps.values(), *self._useless}
        new = [each for each in run_files.list_checkpoints(self._config.folder) if each[0] not in known]
        number, self._renew_at = len(self.steps), max(self._renew_at, now + LOOK_S)
        if not new:
            return
        if number > MAX_PAST_VERSIONS:
            number = self._leaving = self._leaving or 1 + self._random.randrange(MAX_PAST_VERSIONS)
            if any((each.numbers == number).any() for each in games):
                return
            self._renew_at, self._leaving = now + RENEW_S, 0
        steps, path = self._random.choice(new)
        try:
            saved = load_checkpoint(path)
            if saved is not None:
                self._put(number, path, saved)
        except BeastError as error:  # it may be gone, or of another start
            log.warning("no opponent from %d agent steps: %s", steps, error)
            self._useless.add(steps)

    def _put(self, number: int, path: Path, saved: dict[str, Any]) -> None:
        what = f"{path}: expected the agent steps and the model of a run"
        with raise_as(CheckpointError, what, LookupError, TypeError, ValueError):
            steps, model = int(saved["counters"]["agent_steps"]), saved["model"]
        self._policy.oppose(number, path, model, greedy=self._config.algorithm.drawing_explores)
        self.steps[number] = steps


class Games:
    """Which policy acts for each row of a session.

    Args:
      opposed: [N] which rows are of the other side.
      agents: rows of each environment.
    """

    def __init__(self, opposed: NDArray[np.bool_], agents: int) -> None:
        self._opposed, self._agents = opposed.reshape(-1, agents), agents
        self.numbers = np.zeros(len(self._opposed), np.int64)  #: of the opponent in each environment

    def begin(self, first: NDArray[Any], opponents: Opponents) -> NDArray[np.int64]:
        """Draw opponents for environments that begin anew, whose rows are all `first` [N]; returns who acts, [N]."""
        for env in np.flatnonzero((first.reshape(-1, self._agents) != 0).all(1)).tolist():
            self.numbers[env] = opponents.draw()
        return np.where(self._opposed, self.numbers[:, None], 0).ravel()
