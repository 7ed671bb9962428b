"""Environments of unequal sizes under one policy: smaller observations end in zeros, and action masks forbid the
choices that an environment does not have. The sizes are `env.pad_obs` and `env.pad_actions`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from zerobeast.common.errors import EnvError
from zerobeast.common.wire import ArraySpace, EnvSpec, Space, iterate_arrays, nest_values
from zerobeast.common.wire.spaces import MAX_CHOICES
from zerobeast.services.envserver.env_reader import EnvReader
from zerobeast.services.envserver.spaces import accept_spec, fit_value


class Padding(NamedTuple):
    """Sizes to which observations and actions are padded."""

    obs: tuple[int, ...] = ()  #: shape of a box; empty: observations stay as they are
    actions: int = 0  #: number of discrete choices; 0: actions stay as they are

    @classmethod
    def among(cls, specs: Sequence[EnvSpec]) -> Padding:
        """The sizes of the largest of each, if they differ, or only some have masks; of other differences none."""
        shapes, counts = [_shape(spec.obs) for spec in specs], [_choices(spec.action) for spec in specs]
        obs = len(set(shapes)) > 1 and len(set(map(len, shapes))) == 1
        actions = len({(spec.action_mask, *spec.action.choices) for spec in specs}) > 1 and all(counts)
        return cls(tuple(map(max, *shapes)) if obs else (), max(counts) if actions else 0)

    def of(self, spec: EnvSpec) -> EnvSpec:
        """The spec of an environment that is padded to these sizes.

        Raises:
          EnvError: it has a larger one, or is of another kind.
        """
        if self.obs:
            spec = replace(spec, obs=self._pad_obs(spec))
        if self.actions:
            spec = replace(spec, action=self._pad_actions(spec), action_mask=True)
        return accept_spec(spec)

    def _pad_obs(self, spec: EnvSpec) -> Space:
        space, shape = spec.obs, _shape(spec.obs)
        fits = len(shape) == len(self.obs) and all(map(operator.le, shape, self.obs))
        if not isinstance(space, ArraySpace) or not fits:
            found = f"a box of shape {list(shape)}" if shape else "no box"
            expected = f"a box with {len(self.obs)} dimensions, none larger"
            what = f"env.pad_obs is {list(self.obs)}, but an observation of {spec.env_id} is {found}"
            raise EnvError(path=what, expected=expected)
        return replace(space, shape=self.obs, low=(min(0.0, *space.low),), high=(max(0.0, *space.high),))

    def _pad_actions(self, spec: EnvSpec) -> Space:
        space, count = spec.action, _choices(spec.action)
        if not isinstance(space, ArraySpace) or not 0 < count <= self.actions:
            found = f"but {spec.env_id} has {count or 'no'} discrete actions"
            raise EnvError(f"env.pad_actions is {self.actions}, {found}, expected 1 to {self.actions} of them")
        return replace(space, sizes=(self.actions,))


class SupportsPadding(Protocol):
    """Environments that can be padded."""

    def pad(self, padding: Padding, /) -> None:
        """Pad observations and actions from now on."""


E = TypeVar("E", bound=SupportsPadding)


def common_padding(specs: Sequence[EnvSpec]) -> Padding:
    """The padding with which all are the same to policies, but for the name. Raises EnvError if there is none."""
    padding = Padding.among(specs)
    if max(padding.obs, default=0) > MAX_CHOICES:  # which `env.pad_obs` does not take
        largest = max(specs, key=lambda spec: max(_shape(spec.obs)))
        expected = f"sizes of at most {MAX_CHOICES}, because other environments are padded to it"
        raise EnvError(f"env.id {largest.env_id}: obs.shape is {list(_shape(largest.obs))}, expected {expected}")
    first, *others = map(padding.of, specs)
    for other in sorted(others, key=lambda other: _form(other) == _form(first)):  # sizes are not to blame for a kind
        refuse_unlike(first, other)
    return padding


def refuse_unlike(first: EnvSpec, other: EnvSpec) -> None:
    """Raise EnvError if the two environments differ for policies in more than the name."""
    found, expected = other.for_policies(), replace(first, env_id=other.env_id).for_policies()
    if found != expected:
        entry, value, wanted = found.difference(expected)
        raise EnvError(f"env.id {other.env_id}: {entry} is {value}, expected {wanted} as in {first.env_id}")


def sizes_of(spec: EnvSpec) -> tuple[int, ...]:
    """What `env.sizes` has of an environment that is not padded."""
    start, *_ = (spec.action.start if isinstance(spec.action, ArraySpace) else ()) or (0,)
    return (_choices(spec.action), start, *_shape(spec.obs))


def pad_observation(reading: EnvReader, padding: Padding, obs: Any) -> Any:
    """An observation as it looks after padding, nested as its space is. Raises EnvError if it does not fit its own."""
    parts = iterate_arrays(reading.spec.obs, reading.adapt_obs(obs))
    if not padding.obs:
        return nest_values(reading.spec.obs, (part for _, part in parts), tuples=True)
    ((space, values),) = parts
    whole = np.zeros(padding.obs, space.dtype)
    whole[tuple(map(slice, space.shape))] = fit_value("an observation", values, space)
    return whole


def make_padded(make: Callable[..., E], padding: Padding, *args: Any, **more: Any) -> E:
    """What `make` makes, given these arguments, with padding if there is any."""
    envs = make(*args, **more)
    if any(padding):
        envs.pad(padding)
    return envs


def _form(spec: EnvSpec) -> list[tuple[str, str, int]]:
    """What padding cannot change: the kind, dtype and number of dimensions of each array."""
    arrays = (*spec.obs.arrays, *spec.action.arrays)
    return [(array.kind, array.dtype, len(array.shape)) for array in arrays]


def _shape(space: Space) -> tuple[int, ...]:
    """That of a box; empty for any other space."""
    return space.shape if isinstance(space, ArraySpace) and space.kind == "box" else ()


def _choices(space: Space) -> int:
    """How many a discrete space has; 0 for any other."""
    return space.sizes[0] if isinstance(space, ArraySpace) and space.kind == "discrete" else 0
