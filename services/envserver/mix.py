"""Mixes of environments by id: each episode is of one of several, drawn by its rank in the list.

docs/environments.md has the laws, and how environments of unequal sizes become alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import EnvError
from zerobeast.common.text import split_ids
from zerobeast.common.wire import iterate_arrays, nest_values
from zerobeast.common.wire.spaces import count_from_zero
from zerobeast.services.envserver.backend import Backend
from zerobeast.services.envserver.catalogue import NO_ARGUMENTS, make_env
from zerobeast.services.envserver.env_reader import EnvReader, call_env, mask_of
from zerobeast.services.envserver.odds import LEVELS, odds
from zerobeast.services.envserver.padding import common_padding, pad_observation
from zerobeast.services.envserver.scenes import names_of
from zerobeast.services.envserver.spaces import gym_space

FORMS = {
    "zipf": "zipf(env1,env2,...;exponent)",
    "uniform": "uniform(env1,env2,...)",
    "rare": "rare(env1,env2,...)",
    "only": "only(env1,env2,...;rank)",
}
MASK = "action_mask"  #: in infos, as gymnasium's own environments name it, unless `env.action_mask` names another
SEEDS = 2**31


class Mixture(NamedTuple):
    """What an id means."""

    law: str
    ids: list[str]
    number: float = 1.0  #: exponent of zipf, rank of only

    @classmethod
    def parse(cls, env_id: str) -> Mixture:
        """Read an id. Raises EnvError if it is malformed."""
        law, _, rest = env_id.partition("(")
        listed, semicolon, text = rest.removesuffix(")").partition(";")
        what, ids = f"env.id {env_id!r}", split_ids(listed)
        listed_well = rest.endswith(")") and all(ids) and len(set(ids)) == len(ids)
        if not listed_well or (semicolon and ";" not in FORMS[law]) or (law == "only" and not semicolon):
            raise EnvError(path=what, expected=f"{FORMS[law]}, each environment once")
        if any(each.partition("(")[0] in FORMS and "(" in each for each in ids):
            raise EnvError(path=what, expected="environments in the list, not mixes")
        if not semicolon:
            return cls(law, ids)
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if law == "zipf" and not 0 <= number < math.inf:
            raise EnvError(f"{what}: exponent {text.strip()!r}, expected a number of at least 0, and finite")
        if law == "only" and number not in range(1, len(ids) + 1):
            raise EnvError(f"{what}: rank {text.strip()!r}, expected a number from 1 to {len(ids)}")
        return cls(law, ids, number)

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Of each environment, [len(ids)]."""
        count = len(self.ids)
        return np.eye(count)[int(self.number) - 1] if self.law == "only" else odds(count, self.law, self.number)


def levels(env_id: str) -> Mapping[str, str]:
    """The ids of the same list under each law, by its name, and of each environment alone, by its id.

    Raises:
      EnvError: the id is malformed.
    """
    given = Mixture.parse(env_id)
    listed = ",".join(given.ids)
    alone = {each: f"only({listed};{rank})" for rank, each in enumerate(given.ids, 1)}
    return alone | {law: f"{law}({listed})" for law in LEVELS} | {given.law: env_id}


class Mix(gymnasium.Env[Any, Any]):
    """One environment that is several, each of which is made at once.

    The info of an episode's last step has `level`, the rank of its environment counted from 0, the most frequent.

    Args:
      env_id: of the mix.
      kwargs: of the constructor of each environment.
      leave_out, action_mask, own: as in `make_env`, of each environment, some of which may have no mask.

    Raises:
      EnvError: the id is malformed, or an environment cannot be made or is unlike the others.
    """

    def __init__(
        self,
        env_id: str,
        kwargs: dict[str, Any],
        leave_out: tuple[str, ...] = (),
        action_mask: str = "",
        own: Mapping[str, Any] = NO_ARGUMENTS,
    ) -> None:
        mixture = Mixture.parse(env_id)
        self._probabilities = mixture.probabilities
        self._envs = [make_env(each, dict(kwargs), leave_out=leave_out, own=own) for each in mixture.ids]
        self._readings = [
            EnvReader.of(each, env, action_mask if action_mask in getattr(env.observation_space, "spaces", ()) else "")
            for each, env in zip(mixture.ids, self._envs, strict=True)
        ]
        specs = [reading.spec for reading in self._readings]
        self._padding = padding = common_padding(specs)
        self._spec = spec = padding.of(specs[0])
        obs, self.metadata = spec.obs, dict(self._envs[0].metadata or {})
        if padding.obs:
            boxes = [padding.of(each).obs.arrays[0] for each in specs]
            low, high = min(box.low[0] for box in boxes), max(box.high[0] for box in boxes)
            obs = replace(boxes[0], low=(low,), high=(high,))
        self.observation_space, self.action_space = (gym_space(count_from_zero(each)) for each in (obs, spec.action))
        self._mask = action_mask or MASK
        self._masks = spec.action_mask or bool(action_mask)
        if self._masks:
            self.metadata["action_mask"] = self._mask
        self.render_mode = kwargs.get("render_mode")
        self._rank, self.env = 0, self._envs[0]  #: which of them is the current one, and that
        self._seeds: dict[int, int] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in an environment that is drawn anew."""
        super().reset(seed=seed)
        count = len(self._envs)
        if seed is not None:
            self._seeds = dict(enumerate(self.np_random.integers(SEEDS, size=count).tolist()))
        self._rank = int(self.np_random.choice(count, p=self._probabilities))
        self.env = self._envs[self._rank]
        asked = {} if options is None else {"options": options}
        obs, info = self._call("reset", seed=self._seeds.pop(self._rank, None), **asked)
        return pad_observation(self._readings[self._rank], self._padding, obs), self._add_mask(obs, info, over=False)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the current environment."""
        chosen = nest_values(
            self._spec.action, (np.asarray(part)[()] for _, part in iterate_arrays(self._spec.action, action))
        )
        obs, reward, terminated, truncated, info = self._call("step", self._readings[self._rank].action(chosen))
        over = bool(terminated or truncated)
        masked = self._add_mask(obs, info, over=over)
        if over:
            masked["level"] = self._rank
        seen = pad_observation(self._readings[self._rank], self._padding, obs)
        return seen, reward, terminated, truncated, masked

    def render(self) -> Any:
        """What the current environment draws."""
        return self.env.render()

    def get_action_meanings(self) -> list[str]:
        """What the current environment calls its choices; empty if it has no names for them."""
        names = names_of(self.env)
        return names and [*names, *["none"] * (self._padding.actions - len(names))]

    def close(self) -> None:
        """Close all environments."""
        for env in self._envs:
            env.close()

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return call_env(self.env, self._readings[self._rank].spec.env_id, name, *args, **kwargs)

    def _add_mask(self, obs: Any, info: Any, *, over: bool) -> dict[str, Any]:
        """A copy of an info, with the mask of the current environment within that of all, if there is one."""
        copy, own = dict(info or {}), self._readings[self._rank]
        if self._masks:
            key, action = own.mask or (self._mask if self._mask in copy else ""), own.spec.action
            legal = np.zeros(sum(self._spec.action.choices), np.bool_)
            legal[: sum(action.choices)] = mask_of(key, obs, copy, action, over=over) if key else True
            copy[self._mask] = legal
        return copy


BACKEND = Backend(make=Mix, mixes=True, levels=levels)
