"""Infos in the form of gymnasium's vector environments: name -> values [N, ...], _name -> [N] bool: which have one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zerobeast.clients.env_session import Infos


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
