"""Observations, states and actions of environments as the tensors of a policy, and back."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zerobeast.common.errors import ConfigError, EnvError, raise_as
from zerobeast.common.wire import ArraySpace, Space, iterate_arrays, nest_values, short
from zerobeast.rl.ops.frames import push_frame
from zerobeast.rl.ops.tree import tree_map
from zerobeast.services.envserver.spaces import fit_value, split_arrays

FLAG, NUMBER = ArraySpace("multi_binary", "|b1"), ArraySpace.box(())


class State(NamedTuple):
    """What a policy keeps of N environments from one step to the next."""

    frames: Any  #: [N, k, *frame], the newest k frames, or a tree of such; None without a frame stack
    action: Any  #: [N, *action shape], or a tree of such
    core: Tensor  #: [N, core_size], recurrent state


class Sizes(NamedTuple):
    """Those of an environment whose observations and actions are padded to those of others: see `env.sizes`."""

    choices: int
    start: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Mapping[str, tuple[int, ...]], space: Space, obs: Any, env: str) -> "tuple[str, Sizes | None]":
        """The environment `env` or, if that is empty, the one that such an observation is of; and its sizes, if known.

        Raises:
          ConfigError: there is no such environment, or several have such observations, and other actions.
        """
        known = {name: cls(choices, start, tuple(shape)) for name, (choices, start, *shape) in sizes.items()}
        if env or not known:
            return env, known.get(env)
        shape = split_value("obs", space, obs)[0][2].shape if isinstance(space, ArraySpace) else ()
        alike = {name: own for name, own in known.items() if own.shape in (shape, shape[1:], ())}
        if len({own[:2] for own in alike.values()}) > 1:
            names = ", ".join(alike)
            raise ConfigError(
                argument="env", value=env, expected=f"one of {names}, whose observations have the same shape"
            )
        return (*alike, "")[0] if len(alike) == 1 else "", next(iter(alike.values()), None)

    def pad(self, values: Any, space: ArraySpace) -> Any:
        """An observation of this shape, or several, with zeros up to that of the space."""
        found = split_value("obs", space, values)[0][2]
        lead = found.ndim - len(space.shape)
        if lead < 0 or len(self.shape) != len(space.shape) or found.shape[lead:] != self.shape:
            return found
        wider = [(0, max(0, most - own)) for own, most in zip(self.shape, space.shape, strict=True)]
        return np.pad(found, [(0, 0)] * lead + wider)


def split_value(name: str, space: Space, value: Any) -> list[tuple[str, ArraySpace, NDArray[Any]]]:
    """Each array of a value: what error messages call it, its space, and its numbers, unchecked."""
    try:
        with raise_as(ConfigError, "", EnvError):
            return [(path, array, np.asarray(part)) for path, array, part in split_arrays(name, space, value)]
    except (TypeError, ValueError, RuntimeError) as error:  # lists of different lengths, tensors with gradient
        raise ConfigError(argument=name, value=value, expected="numbers") from error


def count_envs(space: Space, obs: Any) -> tuple[int, bool]:
    """How many environments an observation is of, and whether it is of one, without N."""
    path, array, value = split_value("obs", space, obs)[0]
    if value.shape == array.shape:
        return 1, True
    if value.shape[1:] == array.shape and len(value):
        return len(value), False
    own = ", ".join(map(str, array.shape))
    raise ConfigError(f"{path} has shape {list(value.shape)}, expected [{own}], or [{f'N, {own}' if own else 'N'}]")


def to_tensors(name: str, space: Space, value: Any, *, n: int, single: bool, device: torch.device) -> Any:
    """A value of N environments, or of the single one, as a tree of tensors [N, *shape] on the device.

    Raises:
      ConfigError: it is not of the space.
    """
    found = []
    for path, array, numbers in split_value(name, space, value):
        batch = numbers[None] if single and numbers.shape == array.shape else numbers
        with raise_as(ConfigError, "", EnvError):
            found.append(torch.tensor(fit_value(path, batch, array, own=True, lead=(n,)), device=device))
    return nest_values(space, iter(found))


def check_state(state: Any, blank: State) -> State:
    """The state that a policy goes on from, `blank` if there is none. Raises ConfigError if it is another policy's."""
    if state is None:
        return blank
    form = (state.core.shape, state.frames is None) if isinstance(state, State) else ()
    if form == (blank.core.shape, blank.frames is None):
        return cast("State", state)
    found = f"that of {len(state.core)}" if form else short(state)
    expected = f"the state that predict of this policy returned for {len(blank.core)}, or None"
    raise ConfigError(f"state is {found}, expected {expected}", path="state", value=found, expected=expected)


def zero_at_starts(first: Tensor, entries: Tensor) -> Tensor:
    """[N, ...], with zeros where an episode begins."""
    return entries.masked_fill(first.view(-1, *[1] * (entries.ndim - 1)), 0)


def push_frames(first: Tensor, frames: Any, before: Any) -> Any:
    """The stacks [N, k, *frame] that end with frames [N, *frame], from those before; a tree of such."""
    return tree_map(partial(push_frame, first), frames, before)


def to_actions(space: Space, chosen: Any, *, single: bool) -> Any:
    """Actions of the environment's space, numpy arrays within their bounds, from a tree of tensors [N, *shape]."""

    def within(array: ArraySpace, tensor: Tensor) -> Any:
        found = tensor.cpu().numpy()
        found = np.clip(found, *array.bounds).astype(array.dtype) if array.kind == "box" else array.own(found)
        return found[0] if single else found

    return nest_values(space, (within(*part) for part in iterate_arrays(space, chosen)), tuples=True)
