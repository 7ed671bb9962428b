"""The interface of a backend: N environments that are stepped together and write straight into rows.

    env.reset()                  # or env.reset(seed, options), or env.step(actions)
    while not env.collect():     # True once for each thing begun; creation itself is the first
        ...                      # wait until one of env.files can be read, if it has any
    env.rows, env.episodes       # the answer, unchanged until the next reset or step; env.infos if asked for

Every backend restarts episodes by the rule of `common.wire.records`: the row after an episode's last is the first of
the next, its action is ignored and its reward is 0.
"""

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import EnvError
from zerobeast.common.wire import EnvSeeds, EnvSpec, step_record
from zerobeast.common.wire.episodes import Entry, Episode, limit_infos, to_entry
from zerobeast.common.wire.layout import MAX_ROW_BYTES
from zerobeast.services.envserver.infos import RECORDED_NAMES, InfoTable

log = logging.getLogger(__name__)

MAX_LOGGED = 10  #: tracebacks of one session; the rest is only counted

EnvMask = NDArray[np.bool_] | None  #: [N] which environments; None: all
Numbers = Callable[[int], dict[str, float]]


def rows_for(spec: EnvSpec, num_envs: int) -> NDArray[Any]:
    """[N] rows of `step_record`: zeros, and everything is legal.

    Raises:
      EnvError: they would not fit one message.
    """
    record = step_record(spec)
    if num_envs * record.row_bytes > MAX_ROW_BYTES:
        size, limit = num_envs * record.row_bytes >> 20, MAX_ROW_BYTES >> 20
        expected = f"at most {limit} in a message"
        raise EnvError(f"{num_envs} observations of {spec.env_id!r} are {size} MiB, expected {expected}")
    rows = np.zeros(num_envs, record.dtype)
    if spec.action_mask:
        rows["action_mask"] = True
    return rows


class VectorEnv(ABC):
    """N environments, or agents of environments that have several. See the module for how it is driven.

    Attributes:
      spec: what one environment looks like; known once `collect` has returned True.
      rows: [N] of `step_record`, the newest answer.
      episodes: those that ended in it, an entry for each row that ends one, empty if this was no whole episode; then
        those that were lost.
      errors: environments that raised or died so far, and were replaced.
      timeouts: processes killed so far because they did not answer.
      recycled: processes replaced so far because they had played or grown enough.
      infos: table that holds the infos of each answer, if set before the first `collect`.
      files: descriptors that become readable when `collect` has work; may change in any call.
      inline: whether there are none, because `collect` does the work itself, a bit in each call.
      takes_options: whether `reset` accepts options; known once `spec` is.
      agents: of each environment, which are consecutive rows.
      independent: whether `reset` can be of some environments only, and seed each of them; known once `spec` is.
      progress: the share of the run that is trained, from 0 to 1, for `env.options`; 1 for whoever does not train.
    """

    inline: ClassVar[bool] = False
    takes_options: bool = True
    independent: bool = True
    progress: float = 1.0
    spec: EnvSpec
    rows: NDArray[Any]

    def __init__(self, num_envs: int, agents: int = 1) -> None:
        self.num_envs, self.agents = num_envs, agents
        self.episodes: list[Entry] = []
        self.errors = self.timeouts = self.recycled = 0
        self.infos: InfoTable | None = None
        self.files: tuple[int, ...] = ()

    def counts(self) -> Counter[str]:
        """Counts so far, by their names on the health page."""
        left_out = self.infos.left_out if self.infos else 0
        processes = {"env_timeouts": self.timeouts, "env_recycled": self.recycled}
        return Counter(env_errors=self.errors, infos_left_out=left_out, **processes)

    def take_answer(self, parts: Iterable[tuple[slice, list[Entry], Any, list[Entry]]]) -> None:
        """Take the episodes, infos and lost episodes of all parts of an answer."""
        if self.infos is not None:
            self.infos.clear()
        self.episodes, all_lost = [], list[Entry]()
        for part, episodes, infos, lost in parts:
            self.episodes += episodes
            all_lost += [[reason, part.start + row] for reason, row in lost]
            if self.infos is not None:
                self.infos.put(infos, part)
        self.episodes = limit_infos(self.episodes + all_lost)

    def count_failures(self, failures: list[list[Any]], env_id: str, start: int = 0) -> None:
        """Count environments that raised, each [index from `start`, reason and traceback], and log the first."""
        for index, text in failures:
            self.errors += 1
            if self.errors <= MAX_LOGGED:
                log.error("environment %d, %r, failed: %s", start + index, env_id, text)

    @property
    def processes(self) -> int:
        """Number of processes that it has or will have, including those that are ending."""
        return 0

    @abstractmethod
    def reset(self, seed: EnvSeeds = None, options: dict[str, Any] | None = None, only: EnvMask = None) -> None:
        """Begin new episodes. The first reset is of all environments and always seeded; generators go on from there.

        Args:
          seed: as `EnvSeeds`; a single number if the environments share one generator.
          options: for the environments' own `reset`, if it takes any.
          only: which environments, if not all; the rows of the others stay as they are, without infos.
        """

    @abstractmethod
    def step(self, actions: NDArray[Any]) -> None:
        """Begin a step with legal `actions` [N, *action shape], contiguous and ours to change.

        Raises:
          EnvError: as `collect`.
        """

    @abstractmethod
    def collect(self) -> bool:
        """Finish what was begun, if it can be finished without waiting for another process.

        Raises:
          EnvError: the environments are beyond repair.
        """

    def tend(self, now: float, limit_s: float) -> None:
        """End processes of its own that have not answered within `limit_s`.

        Args:
          now: of time.monotonic.
          limit_s: time to make, reset or step one environment.
        """

    @abstractmethod
    def close(self) -> None:
        """Begin to release everything; never waits."""

    def release(self, *, force: bool) -> bool:
        """Whether everything is released; with `force`, what resists is killed."""
        del force
        return True


class EpisodeTracker:
    """Return and length so far of the current whole episode of each of N environments, whatever the settings.

    Attributes:
      whole: of each, whether its newest end is that of a whole episode, not of a life; None: only records can tell.

    If the infos of an environment's ends have a return by gymnasium's RecordEpisodeStatistics, this is reported, as
    wrappers around that one may have changed the rewards; an end without one, such as a lost life, is then none.
    """

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs, np.float64)
        self._lengths = np.zeros(num_envs, np.int64)
        self.whole: list[bool | None] = [None] * num_envs
        self._recorded = np.zeros(num_envs, np.bool_)  #: whose returns were recorded, by what cannot be asked

    def value(self, env: int) -> float:
        """The return so far of one of them."""
        return float(self._returns[env])

    def forget(self, envs: NDArray[Any] | slice | int) -> None:
        """Drop the episodes in progress of some environments, which were cut off.

        Args:
          envs: their indices, or a mask [N].
        """
        self._returns[envs] = 0
        self._lengths[envs] = 0

    def update(
        self, reward: NDArray[Any], void: NDArray[Any], over: NDArray[Any], numbers_of: Numbers = lambda _env: {}
    ) -> list[Entry]:
        """Add one step.

        Args:
          reward: [N] as the environment gave it, unclipped.
          void: [N] whether the action was ignored, so that this was no agent step.
          over: [N] whether an episode ends here, or a life.
          numbers_of: the numbers in the info of an environment whose episode ends.

        Returns:
          An entry for each end, empty if it is not that of a whole episode.
        """
        self._returns += reward
        self._lengths += ~void
        return [self._finish_episode(env, numbers_of(env)) for env in np.flatnonzero(over).tolist()]

    def _finish_episode(self, env: int, infos: dict[str, float]) -> Entry:
        is_recorded, whole = infos.get(RECORDED_NAMES[1], 0) >= 1 and RECORDED_NAMES[0] in infos, self.whole[env]
        if not (is_recorded or (whole if whole is not None else not self._recorded[env])):
            return []
        self._recorded[env] |= is_recorded and whole is None
        value = infos[RECORDED_NAMES[0]] if is_recorded else float(self._returns[env])
        found = to_entry(Episode(value, int(self._lengths[env]), infos))
        self.forget(env)
        return found
