"""A backend whose environments break one rule of its contract each, which their ids name: `faulty/<fault>`."""

import os
import subprocess
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from zerobeast.common.settings import EnvConfig
from zerobeast.common.wire import EnvSeeds
from zerobeast.common.wire.seeds import list_seeds
from zerobeast.services.envserver.backend import Backend, VectorRequest, refuse_arguments, unknown_id_error
from zerobeast.services.envserver.inline import InlineEnvs, InlineVectorEnv
from zerobeast.services.envserver.spaces import env_spec
from zerobeast.services.envserver.vector import EnvMask

LENGTH = 5
#: by fault: the rule that it breaks
FAULTS = {
    "none": "",
    "layout": "rows have the described layout",
    "nan": "values are numbers of their spaces",
    "late": "a reset begins episodes",
    "never first": "the row after an end is first",
    "void action": "the action after an end is ignored",
    "return": "returns and lengths are those of the rows",
    "length": "returns and lengths are those of the rows",
    "random": "the same seed gives the same episodes",
    "deaf": "a later seed begins again",
    "one seed": "environments have consecutive seeds",
    "resets all": "a reset of some leaves the others",
    "no choice": "an action is always legal",
    "short infos": "infos have an entry for each row",
    "no options": "options reach a reset or are refused",
    "any id": "a strange id is refused",
    "any argument": "a strange argument is refused",
    "shared": "one that raises costs its own episode alone",
    "unpadded": "padded rows are those without padding and zeros",
    "own process": "worker processes give the same rows",
    "level": "levels are alike",
    "leak": "closing leaves nothing behind",
}
LEAKED: list["subprocess.Popen[bytes]"] = []  #: processes that whoever tests has to end
#: by fault: the column of a step's rows that is wrong, where, and what it has instead
SPOILT: dict[str, tuple[str, Any, float]] = {
    "nan": ("obs", 0, np.nan),
    "never first": ("first", ..., False),
    "no choice": ("action_mask", 0, False),
    "unpadded": ("obs", np.s_[:, 1:], 1),
}
SINGLE = ("shared", "own process")  #: made one by one


class Walks(InlineEnvs):
    """N random walks of LENGTH steps, in which the reward is the action. `fault` is what is wrong."""

    def __init__(self, config: EnvConfig, num_envs: int, seed: int) -> None:
        self.fault = fault_of(config.id)
        if self.fault != "any argument":
            refuse_arguments(config.kwargs, ["size"], config.id)
        size = 2 if self.fault == "layout" and num_envs == 1 else 1
        masked = self.fault == "no choice"
        super().__init__(env_spec(config.id, Box(-9, 9, (size,)), Discrete(2), masked=masked), num_envs)
        self.at, self.t = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self._rngs, self._done = [np.random.default_rng()] * num_envs, np.zeros(num_envs, np.bool_)
        self.seed([*range(seed, seed + num_envs)])
        if self.fault == "leak":
            LEAKED.append(subprocess.Popen(["sleep", "100"]))

    def seed(self, seeds: list[int | None]) -> None:
        one = self.fault == "one seed"
        for i, seed in enumerate(seeds):
            if seed is not None and self.fault != "random":
                self._rngs[i] = np.random.default_rng(seeds[0] if one else seed)

    def reset(self, seed: EnvSeeds = None, options: dict[str, Any] | None = None, only: EnvMask = None) -> None:
        if self.fault == "no options" and options is not None:
            raise KeyError("options")
        chosen = np.ones(self.num_envs, np.bool_) if only is None or self.fault == "resets all" else only
        if self.fault != "deaf":
            self.seed(list_seeds(seed, self.num_envs))
        self.begin_at(chosen)
        self._done[chosen] = False
        self.fill_first(self.seen(), chosen)
        if self.fault == "late":
            self.rows["reward"] = 1

    def begin_at(self, chosen: NDArray[np.bool_]) -> None:
        self.t[chosen] = 0
        for i in np.flatnonzero(chosen):
            self.at[i] = self._rngs[i].normal()

    def finish_step(self) -> None:
        first, actions = self._done, self.actions.astype(float)
        if self.fault == "void action":
            self.begin_at(first & (actions == 1))
        self.begin_at(first)
        self.t += ~first
        self.at += np.where(first & (self.fault != "void action"), 0, actions / 10)
        self._done = self.t == LENGTH
        reward = np.where(first, 0, actions) + (self.fault == "return")
        void = first & (self.fault != "length")
        self.episodes = self.statistics.update(reward, void, self._done)
        self.infos = {"t": self.t}
        self.fill(self.seen(), actions, self._done, np.zeros_like(first), first)
        if self.fault in SPOILT:
            column, at, value = SPOILT[self.fault]
            self.rows[column][at] = value

    def seen(self) -> NDArray[Any]:
        return np.repeat(self.at[:, None].astype(np.float32), self.own.obs.arrays[0].shape[0], 1)

    def close(self) -> None: ...


class ShortInfos(InlineVectorEnv):
    """Has infos of one row."""

    def collect(self) -> bool:
        done = super().collect()
        if self.infos is not None:
            self.infos.infos = {"t": np.zeros(1)}
        return done


class Walk(gymnasium.Env[Any, Any]):
    """One that counts steps together with all others of its process, or shows the process that it is in."""

    observation_space, action_space = Box(-np.inf, np.inf, (1,)), Discrete(2)
    steps = 0

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        Walk.steps = 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Walk.steps += 1
        return self.seen(), 0.0, False, False, {}

    def seen(self) -> Any:
        return np.array([os.getpid() if self.fault == "own process" else Walk.steps], np.float32)


def fault_of(env_id: str) -> str:
    """The fault that an id names. Raises EnvError if it names none."""
    fault = env_id.partition("/")[2]
    if fault not in FAULTS and "any id" not in fault:
        raise unknown_id_error(env_id, "expected a fault")
    return fault


def make(env_id: str, kwargs: dict[str, Any]) -> Any:
    refuse_arguments(kwargs, [], env_id)
    return Walk(fault_of(env_id))


def make_vec(request: VectorRequest) -> InlineVectorEnv | None:
    if fault_of(request.config.id) in SINGLE:
        return None
    kind = ShortInfos if "short infos" in request.config.id else InlineVectorEnv
    return kind(partial(Walks, request.config), request.num_envs, request.seed, request.num_envs)


def levels(env_id: str) -> dict[str, str]:
    return {"other": "faulty/none"} if fault_of(env_id) == "level" else {"own": env_id}


BACKEND = Backend(make, make_vec, levels=levels)
