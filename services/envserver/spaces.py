"""Converts gymnasium's spaces to this project's specs, and actions from the network to what a space expects.

Observations: Box, Discrete, MultiDiscrete and MultiBinary, float64 as float32, and Dict and Tuple of these. Actions:
the same, without integer boxes. Choices are counted from 0.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.errors import EnvError, Misfit, RemoteProtocolError, raise_as
from zerobeast.common.wire import ArraySpace, CompositeSpace, EnvSpec, Space, iterate_arrays, short
from zerobeast.common.wire.checks import find_stray_choice, find_unfit_action
from zerobeast.common.wire.codec import DTYPES, pack
from zerobeast.common.wire.spaces import Part

MAX_SPEC_BYTES = 60_000  #: so that WELCOME, which carries it, fits a header
MAX_LISTED = 30  #: entries in an error
OBS = "observation space"  #: how errors name it
KINDS = "Box, Discrete, MultiDiscrete, MultiBinary, or Dict or Tuple of these"


def space_of(space: Any, path: str) -> Space:
    """A gymnasium space as it is described to peers.

    Args:
      space: of observations or actions.
      path: how error messages name it.

    Raises:
      EnvError: it is not supported.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        named = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
        parts = tuple(Part(str(name), space_of(part, f"{path}.{name}")) for name, part in named)
        return CompositeSpace("dict" if isinstance(space, spaces.Dict) else "tuple", parts)
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        entry = path.partition(".")[2]
        way_out = f"; env.leave_out {entry} leaves it out" if entry and path.startswith(OBS) else ""
        raise EnvError(f"{path} {str(space)[:200]} is not supported, expected {KINDS}{way_out}")
    shape = tuple(int(size) for size in space.shape or ())
    dtype = np.dtype(space.dtype).str.replace("<f8", "<f4")
    if dtype not in DTYPES or any(size < 1 for size in shape):
        raise EnvError(f"{path} {str(space)[:200]} is not supported, expected fixed-size numbers")
    if isinstance(space, spaces.Discrete):
        return ArraySpace("discrete", dtype, sizes=(int(space.n),), start=_starts(space))
    if isinstance(space, spaces.MultiDiscrete):
        return ArraySpace("multi_discrete", dtype, shape, tuple(int(n) for n in space.nvec.flat), start=_starts(space))
    if isinstance(space, spaces.MultiBinary):
        return ArraySpace("multi_binary", dtype, shape)
    return ArraySpace("box", dtype, shape, (), _bound(space.low), _bound(space.high))


def drop_entries(space: Any, leave_out: Sequence[str]) -> Any:
    """A gymnasium observation space without some entries, of which `obs_adapter` then takes no notice.

    What is left of a Tuple is a Dict by number.

    Args:
      space: of observations.
      leave_out: the entries, named as errors name them, without what is before the first dot.

    Raises:
      EnvError: there is no such entry, or nothing is left.
    """
    known: list[str] = []
    left = _drop_entries(space, "", leave_out, known)
    if unknown := [name for name in leave_out if name not in known]:
        some = ", ".join(known[:MAX_LISTED]) + ", ..." * (len(known) > MAX_LISTED)
        raise EnvError(f"env.leave_out: observations have no entry {unknown[0]!r}, expected some of {some or 'none'}")
    return left


def _drop_entries(space: Any, prefix: str, leave_out: Sequence[str], known: list[str]) -> Any:
    from gymnasium import spaces

    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return space
    parts: dict[Any, Any] = dict(space.items() if isinstance(space, spaces.Dict) else enumerate(space))
    known += [f"{prefix}{name}" for name in parts]
    left = {
        name: _drop_entries(part, f"{prefix}{name}.", leave_out, known)
        for name, part in parts.items()
        if f"{prefix}{name}" not in leave_out
    }
    if parts and not left:
        raise EnvError(f"env.leave_out {','.join(leave_out)}: nothing is left of {prefix[:-1] or 'the observation'}")
    whole_tuple = isinstance(space, spaces.Tuple) and len(left) == len(parts)
    return spaces.Tuple(left.values()) if whole_tuple else spaces.Dict(left)


def _bound(values: NDArray[Any]) -> tuple[float, ...]:
    """One bound for all components if they are alike, else one for each."""
    flat = values.astype(np.float64).ravel()
    return (float(flat[0]),) if (flat == flat[0]).all() else tuple(map(float, flat))


def env_spec(env_id: str, obs: Any, action: Any, *, stack: int = 1, skip: int = 1, masked: bool = False) -> EnvSpec:
    """The spec for peers, checked by the rules that they will apply.

    Args:
      env_id: as the user wrote it.
      obs: gymnasium's space of one frame.
      action: gymnasium's space of one environment's actions.
      stack: frames that a policy gets.
      skip: env_frames per agent step.
      masked: whether the environment has masks of legal choices.

    Raises:
      EnvError: no peer would accept it.
    """
    spaces = space_of(obs, OBS), space_of(action, "action space")
    return accept_spec(EnvSpec(env_id, *spaces, stack, skip, masked))


def accept_spec(spec: EnvSpec) -> EnvSpec:
    """A spec that every peer accepts, without bounds if these are too many. Raises EnvError if there is none."""
    if len(pack(spec.to_wire())) > MAX_SPEC_BYTES:  # it has bounds for each pixel, which nothing needs
        spec = spec.for_policies()
    wire = spec.to_wire()
    if (size := len(pack(wire))) > MAX_SPEC_BYTES:
        raise EnvError(f"env.id {spec.env_id!r} is not supported: its spaces take {size} bytes to describe")
    with raise_as(EnvError, f"env.id {spec.env_id!r} is not supported", RemoteProtocolError):
        return EnvSpec.from_wire(wire)


def gym_space(space: Space, lead: tuple[int, ...] = ()) -> Any:
    """The gymnasium space of one environment's observations or actions.

    Args:
      space: as an env-server describes it.
      lead: dimensions in front, such as those of a stack of frames.
    """
    from gymnasium import spaces

    if not isinstance(space, ArraySpace):
        parts = [(part.name, gym_space(part.space, lead)) for part in space.spaces]
        return spaces.Dict(parts) if space.kind == "dict" else spaces.Tuple([part for _, part in parts])
    dtype: Any = np.dtype(space.dtype).type
    if space.kind == "box":
        low, high = (np.broadcast_to(_limits(bound, dtype), lead + space.shape) for bound in space.bounds)
        return spaces.Box(low, high, dtype=dtype)
    if space.kind == "multi_binary":
        return spaces.MultiBinary(lead + space.shape if lead or len(space.shape) > 1 else space.shape[0])
    if space.kind == "discrete" and not lead:
        return spaces.Discrete(space.sizes[0], dtype=dtype, start=(*space.start, 0)[0])
    sizes, first = (
        np.broadcast_to(each, lead + space.shape).copy()
        for each in (np.reshape(space.sizes, space.shape), space.own(np.zeros(space.shape, dtype)))
    )
    return spaces.MultiDiscrete(sizes, dtype=dtype, start=first)


def _limits(bound: NDArray[np.float64], dtype: Any) -> NDArray[Any]:
    """A box's bound in its dtype. Sent as float64, it may lie beyond an integer's limits: infinity, or 2^63."""
    if (kind := np.dtype(dtype).kind) == "f":
        return bound.astype(dtype)
    least, most = (0, 1) if kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    found = np.full(bound.shape, least, dtype)
    found[bound >= most] = most
    within = (bound > least) & (bound < most)
    found[within] = bound[within].astype(dtype)
    return found


Adapter = Callable[[Any], Any]


def obs_adapter(space: Any) -> Adapter:
    """A function that converts a space's observations [..., *shape] for sending: choices from 0, nothing checked."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        named = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
        adapters = {key: obs_adapter(part) for key, part in named}
        return lambda obs: {str(key): adapt(_obs_entry(obs, key)) for key, adapt in adapters.items()}
    start = _start(space)
    return np.asarray if start is None else lambda obs: np.asarray(obs) - start


def _obs_entry(obs: Any, key: Any) -> Any:
    try:
        return obs[key]
    except (LookupError, TypeError) as error:
        raise Misfit(f"an observation is {short(obs)}, without the entry {key!r} of observation_space") from error


def action_adapter(space: Any) -> Adapter:
    """A function that converts legal actions [..., *shape] of one or several environments to what their space expects.

    Such a space need not count its choices from 0.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        adapters = {key: action_adapter(part) for key, part in space.items()}
        return lambda actions: {key: adapt(actions[str(key)]) for key, adapt in adapters.items()}
    if isinstance(space, spaces.Tuple):
        parts = [action_adapter(part) for part in space]
        return lambda actions: tuple(adapt(actions[str(i)]) for i, adapt in enumerate(parts))
    if isinstance(space, spaces.Box):  # clipped once more, since float32 rounds a float64 bound
        return lambda actions: np.clip(actions.astype(space.dtype), space.low, space.high)
    start = _start(space)
    return lambda actions: (actions if start is None else actions + start).astype(space.dtype)


def split_arrays(path: str, space: Space, value: Any) -> Iterator[tuple[str, ArraySpace, Any]]:
    """Each array of a space: its name in error messages, its space, and its part of a value, nested as the space is.

    Raises:
      EnvError: the value lacks a part.
    """
    if isinstance(space, ArraySpace):
        yield path, space, value
        return
    has_names = isinstance(value, dict) or getattr(getattr(value, "dtype", None), "names", None)
    by_name = has_names or (space.kind == "dict" and not isinstance(value, tuple | list))
    for part in space.spaces:
        try:
            inner = value[part.name if by_name else int(part.name)]
        except (TypeError, LookupError, ValueError) as error:
            names = [each.name for each in space.spaces]
            raise EnvError(argument=path, value=value, expected=f"a {space.kind} of {', '.join(names)}") from error
        yield from split_arrays(f"{path}.{part.name}", part.space, inner)


def fit_value(
    what: str, value: Any, space: ArraySpace, *, exact: bool = False, own: bool = False, lead: tuple[int, ...] = ()
) -> NDArray[Any]:
    """A value as an array of a space, its choices counted from 0; numpy would silently broadcast, cut or round others.

    Args:
      what: its name in errors.
      value: [*lead, *shape].
      space: of one value.
      exact: integers have to be given as integers.
      own: choices are given as the environment counts them.
      lead: dimensions before those of the space, one at most.

    Raises:
      EnvError: it does not fit.
    """
    try:
        given = np.asarray(value)
    except ValueError as error:
        raise Misfit(argument=what, value=value, expected=f"numbers of shape {list(space.shape)}") from error
    wanted = np.dtype(space.dtype)
    if given.dtype.kind not in ("biu" if exact and wanted.kind != "f" else "biuf"):
        raise Misfit(f"{what} is {short(value)} of type {given.dtype}, expected {wanted}")
    if given.shape != (shape := (*lead, *space.shape)):
        raise Misfit(f"{what} has shape {list(given.shape)}, expected {list(shape)}")
    given = space.count_from_zero(given) if own else given
    stored = given
    if given.dtype != wanted:
        with np.errstate(all="ignore"):
            stored = given.astype(wanted)
    if wanted.kind == "f" and not np.isfinite(stored).all():
        raise EnvError(argument=what, value=value, expected="finite numbers")
    if wanted.kind != "f" and stored is not given and not (stored == given).all():
        raise EnvError(argument=what, value=value, expected=f"values of {wanted}")
    if space.kind != "box" and (found := find_stray_choice(stored if lead else stored[None], space, own=own)):
        whose = f" of environment {found[0]}" if lead else ""
        raise EnvError(f"{what}{whose} holds the choice {found[1]}{', counted from 0' * (not own)}")
    return stored


def _starts(space: Any) -> tuple[int, ...]:
    """The same of each component; empty if all count from 0."""
    return tuple(map(int, np.ravel(space.start))) if _start(space) is not None else ()


def _start(space: Any) -> Any:
    """The number that choices are counted from, or None if it is 0."""
    start = getattr(space, "start", 0)
    return start if np.any(start) else None


def make_legal(actions: NDArray[Any], space: Space) -> NDArray[Any]:
    """A contiguous copy of `actions` [N, *shape] that every environment accepts.

    Real actions outside their box are clipped: a Gaussian policy cannot avoid them. A choice out of range means that
    the peer is broken, and an emulator that gets one may never answer again.

    Raises:
      RemoteProtocolError: a choice is out of range or a real number is not finite.
    """
    copy = np.array(actions, order="C")
    for array, chosen in iterate_arrays(space, copy):
        if sentence := find_unfit_action(chosen, array):
            raise RemoteProtocolError(sentence, "action")
        if array.kind == "box":
            chosen[...] = np.clip(chosen, *(bound.astype(np.float32) for bound in array.bounds))
    return copy
