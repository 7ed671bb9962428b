"""Checks of what a peer sent: rows, actions and action masks. Pure."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.wire.spaces import ArraySpace, Space, iterate_arrays
from zerobeast.common.wire.specs import EnvSpec


def find_flaw(rows: NDArray[np.void]) -> str | None:
    """Why rows [N, ...] of any record cannot be used (NaN, infinity, a boolean other than 0 and 1), or None."""
    for name in rows.dtype.names or ():
        values = rows[name]
        if values.dtype.names:
            if sentence := find_flaw(values):
                return f"{name}.{sentence}"
            continue
        if values.dtype.kind == "f":
            wrong, what = ~np.isfinite(values), "a value that is not finite"
        elif values.dtype.kind == "b":
            wrong, what = values.view(np.uint8) > 1, "a boolean other than 0 and 1"
        else:
            continue
        if wrong.any():
            return f"{name} of row {np.argwhere(wrong)[0][0]} holds {what}"
    return None


def find_rollout_flaw(rows: NDArray[np.void], env: EnvSpec) -> str | None:
    """What makes rollout rows unfit for training, or None. Rows of a replay that keeps frames apart have no `obs`."""
    if sentence := find_flaw(rows):
        return sentence
    if (rows["policy_version"] < 0).any():
        return "policy_version is negative"
    actions = find_illegal("last_action", rows["last_action"], env.action)
    return actions or (
        find_illegal("obs", rows["obs"], env.obs, packed=True) if "obs" in (rows.dtype.names or ()) else None
    )


def find_illegal(what: str, values: NDArray[Any], space: Space, *, packed: bool = False) -> str | None:
    """Why `what`, observations or actions [N, ..., *shape], is not of its space (a choice out of range), or None.

    Nothing is wrong with arrays of bits that are `packed`.
    """
    found = (
        find_stray_choice(chosen, array)
        for array, chosen in iterate_arrays(space, values)
        if not (packed and array.bits)
    )
    return next((f"{what} holds the choice {sentence}" for _, sentence in filter(None, found)), None)


def find_unfit_action(actions: NDArray[Any], space: ArraySpace) -> str | None:
    """A sentence on why an environment cannot take actions [N, *shape], or None."""
    if space.kind == "box":
        return None if np.isfinite(actions).all() else "an action is not a finite number"
    found = find_stray_choice(actions, space)
    return found and f"the action of environment {found[0]} is {found[1]}"


def find_stray_choice(values: NDArray[Any], space: ArraySpace, *, own: bool = False) -> tuple[int, str] | None:
    """The first choice out of range in values [N, ..., *shape]: its index in N, and "7, expected 0 to 4"; or None.

    If it is the environment's `own`, it is shown as that counts.
    """
    if space.kind == "box":
        return None
    sizes = np.asarray(space.choices).reshape(space.shape)
    wrong = (values < 0) | (values >= sizes)
    if not wrong.any():
        return None
    at = tuple(int(n) for n in np.argwhere(wrong)[0])
    starts = np.reshape(space.start, space.shape) if own and space.start else np.zeros(space.shape, int)
    size, start = (int(np.broadcast_to(each, values.shape)[at]) for each in (sizes, starts))
    return at[0], f"{int(values[at]) + start}, expected {start} to {start + size - 1}"


def find_forbidden(masks: NDArray[np.bool_], space: Space) -> str | None:
    """Why action masks [..., choices of all components] cannot be used (a component without a choice), or None."""
    start = 0
    for component, size in enumerate(space.choices):
        if not masks[..., start : start + size].any(-1).all():
            return f"forbids all {size} choices of component {component}"
        start += size
    return None
