"""msgpack for headers and the control plane, with msgpack-numpy's array maps and without its pickle.

msgpack-numpy's own hook hands the bytes of an object array to pickle, and a void array to numpy as raw pointers:
either is remote code execution for any peer that can reach a socket. `unpack` therefore builds arrays itself, from an
allow-list of dtypes, and never calls that hook; the bytes on the wire stay msgpack-numpy's.
"""

import math
from typing import Any

import msgpack
import msgpack_numpy
import numpy as np

from zerobeast.common.errors import LocalProtocolError, RemoteProtocolError

#: element types that may travel: fixed-size numbers without padding, little-endian
DTYPES = ("|b1", "|u1", "|i1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
MAX_NDIM = 8
MAX_ARRAY_BYTES = 1 << 20
MAX_DEPTH = 32  #: levels of nested lists and maps; Python cannot even print a thousand


def pack(value: Any) -> bytes:
    """Encode plain values and small arrays.

    Raises:
      LocalProtocolError: something in it cannot travel, such as an object array.
    """
    try:
        packed: bytes = msgpack.packb(value, default=_encode, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(f"cannot encode: {error}") from error
    return packed


def unpack(data: bytes | memoryview) -> Any:
    """Decode what `pack` wrote. Arrays come back read-only.

    Raises:
      RemoteProtocolError: for any other bytes, whatever they are.
    """
    try:
        value = msgpack.unpackb(
            data, object_hook=_decode, ext_hook=_refuse_extension, max_ext_len=0, raw=False, strict_map_key=False
        )
    except RemoteProtocolError:
        raise
    except Exception as error:  # whatever hostile bytes make msgpack raise
        raise RemoteProtocolError(f"unreadable msgpack: {type(error).__name__}") from error
    if _deeper(value, MAX_DEPTH):
        raise RemoteProtocolError(f"lists or maps nested more than {MAX_DEPTH} deep")
    return value


def _encode(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic):
        raise LocalProtocolError(f"a {type(value).__name__} cannot travel")
    if value.dtype.str not in DTYPES or value.ndim > MAX_NDIM or value.nbytes > MAX_ARRAY_BYTES:
        raise LocalProtocolError(f"an array {value.dtype.str}{list(value.shape)} cannot travel; known: {DTYPES}")
    return msgpack_numpy.encode(value)


def _deeper(value: Any, depth: int) -> bool:
    """Whether lists and maps are nested more than `depth` deep."""
    if not isinstance(value, list | dict):
        return False
    entries = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_deeper(entry, depth - 1) for entry in entries)


def _refuse_extension(code: int, _data: bytes) -> Any:
    raise RemoteProtocolError(f"msgpack extension {code}")


def _decode(pairs: dict[Any, Any]) -> Any:
    """Turn a msgpack-numpy map into an array, or return any other map unchanged."""
    if b"nd" not in pairs and "nd" not in pairs:
        return pairs
    entries = {key.decode() if isinstance(key, bytes) else key: value for key, value in pairs.items()}
    kind, dtype, data = entries.get("kind", b""), entries.get("type"), entries.get("data")
    shape = entries.get("shape", [])
    if kind not in (b"", "") or dtype not in DTYPES or not isinstance(data, bytes):
        raise RemoteProtocolError("an array must have a plain numeric dtype", "array")
    if not isinstance(shape, list) or len(shape) > MAX_NDIM or any(type(n) is not int or n < 0 for n in shape):
        raise RemoteProtocolError("an array's shape must be a short list of sizes", "array")
    if len(data) > MAX_ARRAY_BYTES or math.prod(shape) * np.dtype(dtype).itemsize != len(data):
        raise RemoteProtocolError("an array's bytes do not fit its shape", "array")
    return np.frombuffer(data, dtype).reshape(shape)
