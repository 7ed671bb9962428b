"""Environments that this thread makes, a part at a time, and steps: no other session steps while a part is made.

A second thread would not help: ale-py (0.12.1) holds Python's global interpreter lock while it makes an emulator.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import EnvError, raise_as
from zerobeast.common.wire import ArraySpace, EnvSeeds, EnvSpec, iterate_arrays
from zerobeast.common.wire.bits import pack_bits
from zerobeast.common.wire.checks import find_unfit_action
from zerobeast.common.wire.episodes import Entry
from zerobeast.common.wire.seeds import slice_seeds
from zerobeast.common.wire.spaces import array_names
from zerobeast.services.envserver.infos import InfoTable
from zerobeast.services.envserver.padding import Padding
from zerobeast.services.envserver.spaces import fit_value
from zerobeast.services.envserver.vector import EnvMask, EpisodeTracker, VectorEnv, rows_for

REWARD = ArraySpace.box(())


class InlineEnvs(ABC):
    """Base class of N environments that step inside this process, in code that never waits for a peer.

    Attributes:
      spec: what one of them looks like to peers.
      own: the same without padding.
      agents: of each environment, which are consecutive rows; N counts the rows.
      infos: of the newest answer, in the form of gymnasium's vector environments.
      wants_infos: whether anybody reads them.
      progress: as in `VectorEnv`.
      actions: of the step under way, for `finish_step`.
      failures: [index, reason and traceback] of environments that raised and were replaced; taken with each answer.
      lost: episodes that were lost in the newest answer, [reason, row] each.
    """

    takes_options: ClassVar[bool] = True
    independent: ClassVar[bool] = True
    agents = 1
    resets_when_made: ClassVar[bool] = True  #: in a turn of its own, since that takes as long as making them
    failed: Sequence[int] = ()  #: as in `shard.Shard`
    worn = False  #: likewise
    progress = 1.0

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self.spec = self.own = spec
        self.num_envs = num_envs
        self.episodes: list[Entry] = []
        self.infos: dict[str, Any] | InfoTable = {}
        self.wants_infos = False
        self.failures: list[list[Any]] = []
        self.lost: list[Entry] = []
        self.statistics = EpisodeTracker(num_envs)
        self.write_to(rows_for(spec, num_envs))

    def write_to(self, rows: NDArray[Any]) -> None:
        """Write all answers from now on into `rows` [N] of `step_record`, in which nothing but padding is set yet."""
        self.rows = rows
        self._bits: list[tuple[ArraySpace, NDArray[Any], NDArray[Any]]] = []  #: arrays of them: space, plain, packed
        columns, entries = [], array_names(self.own.obs)
        self.names = [f"entry {name!r} of an observation" if name else "an observation" for name in entries]
        for own, (space, column) in zip(self.own.obs.arrays, iterate_arrays(self.spec.obs, rows["obs"]), strict=True):
            whole = np.zeros((len(rows), *space.shape), space.dtype) if space.bits else column
            if space.bits:
                self._bits.append((space, whole, column))
            columns.append((own, whole[:, *map(slice, own.shape)]))
        self.columns = tuple(columns)
        if self.own.action != self.spec.action:
            rows["action_mask"][:, sum(self.own.action.choices) :] = False

    def pad(self, padding: Padding) -> None:
        """Pad observations and actions from now on. Raises EnvError if they cannot be."""
        self.spec = padding.of(self.own)
        self.write_to(rows_for(self.spec, self.num_envs))

    def pack(self) -> None:
        """Pack arrays of bits into the rows, once `columns` have been written."""
        for space, values, packed in self._bits:
            packed[...] = pack_bits(values, space)

    def blank(self, row: int) -> None:
        """Write a row without an observation, in which every action is legal but those of padding."""
        self.rows[row : row + 1].view(np.uint8)[:] = 0
        for _, values, _ in self._bits:
            values[row] = 0
        if self.spec.action_mask:
            self.rows[row]["action_mask"][: sum(self.own.action.choices)] = True

    @abstractmethod
    def reset(self, seed: EnvSeeds = None, options: dict[str, Any] | None = None, only: EnvMask = None) -> None:
        """Begin new episodes and fill their first rows; as `VectorEnv.reset`."""

    def begin_step(self, actions: NDArray[Any]) -> None:
        """Hand over the actions, which by default wait for `finish_step`."""
        self.actions = actions

    @abstractmethod
    def finish_step(self) -> None:
        """Fill rows and episodes."""

    def begin(self, actions: NDArray[Any]) -> None:
        """Hand over actions that fit `spec`. Raises EnvError for a choice that only padding has."""
        if self.own.action != self.spec.action:
            for space, chosen in iterate_arrays(self.own.action, actions):
                if sentence := find_unfit_action(chosen, space):
                    raise EnvError(f"environment {self.spec.env_id!r}: {sentence}")
        self.begin_step(actions)

    def step(self, actions: NDArray[Any]) -> None:
        """Begin a step of all environments and finish it."""
        self.begin(actions)
        self.finish_step()

    @abstractmethod
    def close(self) -> None:
        """Release the environments."""

    def over(self) -> int:
        """How many environments have ended an episode in the newest step."""
        return len(self.episodes)

    def scene(self) -> dict[str, Any]:
        """What there is to see of the first of them, by `scenes.pack_scene`; nothing unless they were made for that."""
        return {}

    def fill_first(self, obs: Any, only: EnvMask = None) -> None:
        """Write first rows of episodes, for the environments in `only` or all; obs [N, ...] is of all."""
        chosen = np.ones(self.num_envs, np.bool_) if only is None else only
        self.statistics.forget(chosen)
        self.episodes = []
        kept = self.rows[~chosen]
        no = np.zeros(self.num_envs, np.bool_)
        self.fill(obs, np.zeros(self.num_envs), no, no, first=chosen)
        self.rows[~chosen] = kept

    def fill(
        self,
        obs: Any,
        reward: NDArray[Any],
        terminated: NDArray[Any],
        truncated: NDArray[Any],
        first: NDArray[Any],
    ) -> None:
        """Write rows. All arguments are [N, ...], obs nested as its space; first rows get no reward and no end."""
        rows, lead, who = self.rows, (self.num_envs,), f"environment {self.spec.env_id!r}:"
        rewards = fit_value(f"{who} a reward", reward, REWARD, lead=lead)
        arrays = iterate_arrays(self.spec.obs, obs)
        for name, (space, column), (_, values) in zip(self.names, self.columns, arrays, strict=True):
            column[...] = fit_value(f"{who} {name}", values, space, lead=lead)
        self.pack()
        rows["first"] = first
        rows["reward"] = np.where(first, 0, rewards)
        rows["terminated"] = terminated & ~first
        rows["truncated"] = truncated & ~first


class InlineVectorEnv(VectorEnv):
    """N environments in one or more parts, stepped side by side.

    Each `collect` makes a part, or resets one with a seed: seeding an emulator takes as long as making it.

    Args:
      make: makes n environments, given n and the seed of the first.
      num_envs: N.
      seed: environment i gets seed + i at its first reset.
      most: environments of a part at most.
      agents: of each environment; all these numbers count them as environments.
    """

    inline = True

    def __init__(
        self, make: Callable[[int, int], InlineEnvs], num_envs: int, seed: int, most: int, agents: int = 1
    ) -> None:
        super().__init__(num_envs, agents)
        self.make, self._seed = make, seed
        self._parts: list[tuple[slice, InlineEnvs]] = []
        self._begun: list[list[Callable[[], None]]] | None = []  #: the calls that finish it, those of each `collect`
        for start in range(0, num_envs, most):
            part = slice(start, min(start + most, num_envs))
            self._begun += [[partial(self._make_part, part)], [self._reset_newest]]
        self._was_reset = False

    def reset(self, seed: EnvSeeds = None, options: dict[str, Any] | None = None, only: EnvMask = None) -> None:
        is_first, self._was_reset = not self._was_reset, True
        if is_first and options is not None and seed is None:
            seed = self._seed
        calls: list[Callable[[], None]] = []
        for part, env in self._parts:
            env.progress = self.progress
            if is_first and seed is None and env.resets_when_made:
                continue  # its rows are those of the first reset
            if only is not None and not only[part].any():
                env.episodes, env.infos = [], {}
                continue
            part_only = None if only is None else only[part]
            calls.append(partial(env.reset, slice_seeds(seed, part), options, part_only))
        self._begun = [calls] if seed is None else [[call] for call in calls]

    def step(self, actions: NDArray[Any]) -> None:
        with raise_as(EnvError, f"environment {self.spec.env_id!r} cannot take a step"):
            for part, env in self._parts:
                env.progress = self.progress
                env.begin(actions[part])
        self._begun = [[env.finish_step for _, env in self._parts]]

    def collect(self) -> bool:
        if self._begun is None:
            return False
        try:
            for call in self._begun.pop(0) if self._begun else ():
                call()
        finally:
            for part, env in self._parts:
                self.count_failures(env.failures, self.spec.env_id, part.start)
                env.failures = []
        if self._begun:
            return False
        self._begun = None
        self.take_answer((part, env.episodes, env.infos, env.lost) for part, env in self._parts)
        return True

    def close(self) -> None:
        for _, env in self._parts:
            with suppress(Exception):  # foreign code, and nothing depends on it
                env.close()

    def _make_part(self, part: slice) -> None:
        env = self.make((part.stop - part.start) // self.agents, self._seed + part.start)
        if not self._parts:
            self.spec, self.rows = env.spec, rows_for(env.spec, self.num_envs)
            self.takes_options, self.independent, self.agents = env.takes_options, env.independent, env.agents
        env.write_to(self.rows[part])
        env.wants_infos = self.infos is not None
        self._parts.append((part, env))

    def _reset_newest(self) -> None:
        env = self._parts[-1][1]
        if env.resets_when_made:
            env.reset()
