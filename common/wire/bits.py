"""Arrays of bits as rows have them: eight elements to a byte, the first in the lowest bit; in numpy.

`zerobeast.rl.ops.columns` is the torch side.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerobeast.common.wire.records import step_record
from zerobeast.common.wire.spaces import ArraySpace, iterate_arrays
from zerobeast.common.wire.specs import EnvSpec


def pack_bits(values: NDArray[Any], space: ArraySpace) -> NDArray[np.uint8]:
    """[..., *shape] of a space of bits -> [..., bytes]; what is not 0 becomes 1."""
    lead = values.shape[: values.ndim - len(space.shape)]
    return np.packbits(values.reshape(*lead, -1), axis=-1, bitorder="little")


def unpack_bits(packed: NDArray[np.uint8], space: ArraySpace) -> NDArray[np.uint8]:
    """Inverse of `pack_bits`, but for the dtype; spare bits of the last byte may be anything."""
    flat = np.unpackbits(packed, axis=-1, count=math.prod(space.shape), bitorder="little")
    return flat.reshape(*packed.shape[:-1], *space.shape)


def unpack_rows(rows: NDArray[Any], env: EnvSpec) -> NDArray[Any]:
    """Rows [N] of `step_record` with observations as their space has them; the rows themselves if they have no bits."""
    record = step_record(env, packed=False).dtype
    if record == rows.dtype:
        return rows
    found = np.zeros(len(rows), record)
    for name in record.names or ():
        if name != "obs":
            found[name] = rows[name]
    sent = (values for _, values in iterate_arrays(env.obs, rows["obs"]))
    for (space, column), values in zip(iterate_arrays(env.obs, found["obs"]), sent, strict=True):
        column[...] = unpack_bits(values, space) if space.bits else values
    return found
