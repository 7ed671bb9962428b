"""Environments of several agents: PettingZoo's parallel ones, or those in which agents take turns. Each agent is a row.

"Several agents" in docs/environments.md has the rules, also for the rows of an agent that is not there.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import EnvError, raise_as
from zerobeast.common.settings import EnvConfig
from zerobeast.common.wire import ArraySpace, CompositeSpace, EnvSpec, iterate_arrays
from zerobeast.common.wire.checks import find_unfit_action
from zerobeast.common.wire.episodes import merge_infos
from zerobeast.common.wire.spaces import Part
from zerobeast.services.envserver.env_reader import CALLS, EnvReader, drop_mask, read_mask
from zerobeast.services.envserver.numbers import NumberedEnvs
from zerobeast.services.envserver.padding import Padding, common_padding, pad_observation
from zerobeast.services.envserver.shard import FIRST_OUTCOME, Shard
from zerobeast.services.envserver.spaces import drop_entries

MASK = "action_mask"  #: entry of a Dict observation, as PettingZoo's games have it
OBSERVATION = "observation"  #: the entry beside it
AGENT = "agent"  #: entry of an observation with `env.agent_id`
NUMBER = re.compile(r"_?\d+$")  #: what the names of agents with the same role differ in


def to_parallel(env: Any) -> Any:
    """An environment as PettingZoo's parallel ones, in which all agents act at once; None if it is none of several.

    If its agents take turns, those that wait have to act too, but their actions are ignored.
    """
    if not all(callable(getattr(env, name, None)) for name in ("observation_space", "action_space")):
        return None
    if callable(getattr(env, "agent_iter", None)):
        from pettingzoo.utils.conversions import turn_based_aec_to_parallel

        return turn_based_aec_to_parallel(env)
    return env


def make_shard(
    env_id: str, make: Callable[[], Any], num_envs: int, seed: int | None, *, config: EnvConfig, **more: Any
) -> Shard:
    """Environments of one agent each or of several, whichever `make` makes; the rest as for `Shard`.

    Raises:
      EnvError: they cannot be made, or settings of several agents are given for a single one.
    """
    if seed is not None:  # for environments that draw from the generators of their process
        random.seed(seed)
        np.random.seed(seed)
    numbered = NumberedEnvs(make)
    first = numbered.first()
    kind: Callable[..., Shard] = Shard
    if callable(first.observation_space):
        kind = partial(AgentShard, agents=config.agents, agent_id=config.agent_id, leave_out=config.leave_out)
    elif config.agents > 1 or config.agent_id:
        first.close()
        given = "env.agent_id is true" if config.agent_id else f"env.agents is {config.agents}"
        raise EnvError(f"{given}, but {env_id} has a single agent")
    envs = kind(env_id, numbered, num_envs, seed, config.action_mask, **more)
    envs.options = config.options
    return envs


class AgentEnvReader:
    """Converts what an environment returns for one agent to the form that all agents have after padding.

    Args:
      env: the environment.
      env_id: as the user wrote it.
      agent: name of the agent.
      mask: as in `EnvReader.of`; by default also the entry of a Dict observation that PettingZoo's games have.
      leave_out: entries of an observation that are not sent.
    """

    def __init__(self, env: Any, env_id: str, agent: str, mask: str, leave_out: tuple[str, ...]) -> None:
        space, metadata = env.observation_space(agent), getattr(env, "metadata", None) or {}
        mask = mask or str(metadata.get(MASK, "")) or MASK * (drop_mask(space, MASK) is not space)
        space = drop_mask(space, mask)
        self._alone = list(getattr(space, "spaces", ())) == [OBSERVATION]
        space = space[OBSERVATION] if self._alone else space
        space = drop_entries(space, leave_out) if leave_out else space
        spaces = {"observation_space": space, "action_space": env.action_space(agent)}
        self.own = EnvReader.of(f"{env_id}, agent {agent!r}", SimpleNamespace(**spaces, metadata={}), mask)
        self._padding, self._number = Padding(), -1

    def configure(self, padding: Padding, number: int) -> None:
        """Pad from now on. With a number that is not negative, observations hold that of the agent."""
        self._padding, self._number = padding, number

    def adapt_obs(self, obs: Any) -> Any:
        """An observation for `InlineEnvs.columns`."""
        seen = pad_observation(self.own, self._padding, obs[OBSERVATION] if self._alone else obs)
        if self._number < 0:
            return seen
        return {**(seen if isinstance(seen, dict) else {"obs": seen}), AGENT: self._number}

    def legal(self, obs: Any, info: Any, *, over: bool) -> NDArray[np.bool_]:
        """Which choices are legal, those of padding among them; of a component without any, the first."""
        del over
        own = self.own.spec.action
        legal = np.zeros(self._padding.actions or sum(own.choices), np.bool_)
        legal[: sum(own.choices)] = read_mask(self.own.mask, obs, info, own) if self.own.mask else True
        starts = np.cumsum([0, *own.choices[:-1]])
        legal[starts] |= ~np.logical_or.reduceat(legal[: sum(own.choices)], starts)  # it waits for its turn
        return legal

    def action(self, chosen: Any) -> Any:
        """What `step` takes for the agent. Raises EnvError for a choice that only padding has."""
        for space, choice in iterate_arrays(self.own.spec.action, chosen) if self._padding.actions else ():
            if sentence := find_unfit_action(np.asarray(choice)[None], space):
                raise EnvError(sentence)
        return self.own.action(chosen)


class AgentShard(Shard):
    """Some of a session's environments, of several agents each.

    If agents have roles, which their names without numbers are, the numbers of an episode have `return.<role>`.

    Args:
      agents: how many each environment has to have; 0: any number.
      agent_id: whether observations hold the number of the agent.
      leave_out: as for `AgentEnvReader`.
      args, more: as for `Shard`.

    Raises:
      EnvError: they cannot be made, have another number of agents, or agents with spaces that cannot be padded.
    """

    independent = False  # of what a reset may choose, agents are none

    def __init__(self, *args: Any, agents: int, agent_id: bool, leave_out: tuple[str, ...], **more: Any) -> None:
        self._asked, self._with_id, self._leave_out = agents, agent_id, leave_out
        super().__init__(*args, **more)
        self._present = [dict[str, int]() for _ in self._envs]  #: agents that act, and their numbers

    def _read(self, env_id: str, mask: str) -> EnvSpec:
        env = self._envs[0]
        names = list(getattr(env, "possible_agents", ()))
        if not names:
            raise EnvError(f"env.id {env_id!r}: expected possible_agents, the names of all agents that can appear")
        if self._asked not in (0, len(names)):
            some = ", ".join(map(str, names[:10])) + ", ..." * (len(names) > 10)
            raise EnvError(f"env.agents is {self._asked}, but {env_id} has {len(names)} agents: {some}")
        self.agents, self._numbers = len(names), {name: number for number, name in enumerate(names)}
        with raise_as(EnvError, f"env.id {env_id!r}: spaces of its agents cannot be read"):
            self._readings = [AgentEnvReader(env, env_id, name, mask, self._leave_out) for name in names]
        roles = [NUMBER.sub("", str(name)) for name in names]
        self._roles = roles if len(set(roles)) > 1 else []
        specs = [reading.own.spec for reading in self._readings]
        padding = common_padding(specs)
        for number, reading in enumerate(self._readings):
            reading.configure(padding, number if self._with_id else -1)
        spec = replace(padding.of(specs[0]), env_id=env_id)
        if not self._with_id:
            return spec
        obs = spec.obs
        parts = obs.spaces if isinstance(obs, CompositeSpace) and obs.kind == "dict" else (Part("obs", obs),)
        if AGENT in (part.name for part in parts):
            raise EnvError(f"env.agent_id is true, but observations of {env_id} already have an entry {AGENT!r}")
        id_part = Part(AGENT, ArraySpace.discrete(len(names)))
        return replace(spec, obs=CompositeSpace("dict", (*parts, id_part)))

    def _playing_rows(self, i: int) -> Iterable[int]:
        return (i * self.agents + n for n in self._present[i].values())

    def _numbers_of(self, row: int) -> dict[str, float]:
        own = {f"return.{self._roles[row % self.agents]}": self.statistics.value(row)} if self._roles else {}
        return merge_infos(own, self._last[row])

    def _step(self, i: int) -> None:
        before, start = self._present[i], i * self.agents
        actions = {name: self._readings[n].action(self.actions[start + n]) for name, n in before.items()}
        answer = self._call(i, "step", actions)
        obs, infos = answer[0], answer[-1]
        ended = [part for part in answer[2:4] if isinstance(part, Mapping)]  # some games list an agent after its end
        now = {name: n for name, n in self._find_acting(i).items() if not any(part.get(name) for part in ended)}
        for name, n in before.items():
            own = [_agent_part(part, name, what) for part, what in zip(answer[:-1], CALLS["step"], strict=False)]
            over = self._write(start + n, self._readings[n], *own, (infos or {}).get(name))
            if not over and name not in now:
                raise EnvError(f"agent {name!r} has left without terminated or truncated")
        self._open(i, {name: n for name, n in now.items() if name not in before}, obs, infos, kept=before)
        self._present[i], self._done[i] = now, not now

    def _begin(self, i: int, obs: Any, info: Any) -> None:
        now = self._present[i] = self._find_acting(i)
        if not now:
            raise EnvError("there are no agents after a reset")
        self._open(i, now, obs, info, kept={})

    def _open(self, i: int, joined: Mapping[str, int], obs: Any, infos: Any, kept: Mapping[str, int]) -> None:
        """Write the first rows of agents that have joined, and those of others that do not act, but not of `kept`."""
        for name, n in self._numbers.items():
            row = i * self.agents + n
            if name in kept:
                continue
            if name in joined:
                seen = _agent_part(obs, name, CALLS["reset"][0])
                self._write(row, self._readings[n], seen, *FIRST_OUTCOME, (infos or {}).get(name))
            else:
                self.blank(row)
            self.rows[row]["first"] = True

    def _find_acting(self, i: int) -> dict[str, int]:
        """Names and numbers of the agents that act now. Raises EnvError if one is not among the possible ones."""
        names = list(self._envs[i].agents)
        if unknown := [name for name in names if name not in self._numbers]:
            raise EnvError(f"agent {unknown[0]!r} is not in possible_agents: {', '.join(map(str, self._numbers))}")
        return {name: self._numbers[name] for name in names}


def _agent_part(part: Any, name: str, what: str) -> Any:
    """What a call returned for an agent."""
    if not isinstance(part, Mapping) or name not in part:
        raise EnvError(f"there is no {what} of agent {name!r}")
    return part[name]
