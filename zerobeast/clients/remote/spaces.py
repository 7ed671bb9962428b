"""Spaces, observations and infos as gymnasium has them, from those on the wire."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.clients.env_session import Infos, Mask
from zerobeast.common.wire import EnvSpec, iterate_arrays, nest_values
from zerobeast.common.wire.stacks import push_frames


class Observations:
    """The newest observation of each environment, a stack of frames if `frame_stack` is more than 1."""

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self._space, self._stacked = spec.obs, bool(spec.stack)
        self._arrays = [np.zeros((num_envs, *spec.stack, *array.shape), array.dtype) for array in spec.obs.arrays]

    def take(self, rows: NDArray[Any], chosen: Mask, first: Mask) -> None:
        """Take the newest frames of some environments.

        Args:
          rows: [N] of `step_record`, not packed.
          chosen: [N] whose frames to take.
          first: [N] which environments begin an episode.
        """
        for kept, (space, values) in zip(self._arrays, iterate_arrays(self._space, rows["obs"]), strict=True):
            column = space.own(values)
            if self._stacked:
                push_frames(kept, column, chosen, first)
            else:
                np.copyto(kept, column, where=chosen.reshape(-1, *[1] * (column.ndim - 1)))

    def all(self) -> Any:
        """Copies of all observations, [N, ...] each, nested as gymnasium does."""
        return nest_values(self._space, iter([array.copy() for array in self._arrays]), tuples=True)

    def each(self, chosen: Mask) -> NDArray[np.object_]:
        """[N] observations of single environments, None for those not chosen, as in gymnasium's `final_obs`."""
        found = np.full(len(chosen), None, dtype=object)
        for i in np.flatnonzero(chosen):
            found[i] = nest_values(self._space, iter([array[i].copy() for array in self._arrays]), tuples=True)
        return found


def put(into: Infos, infos: Infos, num_envs: int, rows: NDArray[np.intp], source: NDArray[np.intp]) -> None:
    """Add infos of some environments to those of N.

    Args:
      into: infos of all N.
      infos: the infos to add.
      num_envs: N.
      rows: indices of the environments in `into`.
      source: their indices in `infos`.
    """
    for name, values in infos.items():
        mask = infos.get(f"_{name}")
        if name[:1] == "_" or mask is None or not (given := mask[source].astype(np.bool_)).any():
            continue
        if isinstance(values, dict):
            if not isinstance(place := into.setdefault(name, {}), dict):
                continue
            put(place, values, num_envs, rows[given], source[given])
        else:
            place = into.setdefault(name, np.zeros((num_envs, *values.shape[1:]), values.dtype))
            if isinstance(place, dict) or place.shape[1:] != values.shape[1:]:
                continue  # two env-servers disagree on its structure
            if (both := np.result_type(place, values)) != place.dtype:
                place = into[name] = place.astype(both)
            place[rows[given]] = values[source[given]]
        into.setdefault(f"_{name}", np.zeros(num_envs, np.bool_))[rows[given]] = True


def select(infos: Infos, mask: NDArray[np.bool_], into: Infos | None = None) -> Infos:
    """The infos of the environments in a mask [N], added to `into` if given."""
    into, rows = {} if into is None else into, np.flatnonzero(mask)
    put(into, infos, len(mask), rows, rows)
    return into
