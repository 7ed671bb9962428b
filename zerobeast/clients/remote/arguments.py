"""What callers pass to vector environments, checked. Every refusal is a ConfigError."""

import contextlib
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.vector import AutoresetMode

from zerobeast.common.errors import ConfigError
from zerobeast.common.wire import MAX_ENV_SEED, EnvSeeds

MASK = "reset_mask"  #: gymnasium's name for the mask in the options of `reset`


def autoreset_mode_of(name: str | AutoresetMode) -> AutoresetMode:
    """gymnasium's autoreset mode for a name or value."""
    for mode in AutoresetMode:
        if name in (mode, mode.name, mode.value):
            return mode
    raise ConfigError(argument="autoreset_mode", value=name, expected=", ".join(mode.name for mode in AutoresetMode))


def check_seeds(seed: Any, num_envs: int) -> EnvSeeds:
    """The seeds as Python integers, which can be sent."""
    is_list = isinstance(seed, Sequence | np.ndarray)
    seeds = list(seed) if is_list else [seed]
    are_seeds = all(
        each is None or (isinstance(each, int | np.integer) and 0 <= each <= MAX_ENV_SEED) for each in seeds
    )
    if not are_seeds or (is_list and len(seeds) != num_envs):
        one = f"an integer from 0 to {MAX_ENV_SEED}, None"
        raise ConfigError(argument="seed", value=seed, expected=f"{one}, or a list of {num_envs} such")
    found = [None if each is None else int(each) for each in seeds]
    return found if is_list else found[0]


def refuse_mask(mask: Any, num_envs: int, *, was_reset: bool) -> None:
    """Refuse what is no mask of environments to reset, and any mask before all were reset."""
    is_mask = isinstance(mask, np.ndarray) and (mask.dtype, mask.shape) == (np.bool_, (num_envs,))
    if not is_mask or not mask.any():
        expected = f"an array of {num_envs} booleans, one at least true"
        raise ConfigError(argument=f"options[{MASK!r}]", value=mask, expected=expected)
    if not was_reset:
        raise ConfigError(f"options[{MASK!r}] before there was a reset of all environments")


def gymnasium_spec(env_id: str) -> GymnasiumSpec | None:
    """gymnasium's spec of an id if it is registered here, else one with no more than the id."""
    with contextlib.suppress(gymnasium.error.Error):
        return gymnasium.registry.get(env_id) or GymnasiumSpec(env_id)
    return None
