"""A subscriber of `beast bench weights`: receives versions into memory that is there already, and checks them."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

import numpy as np

from zerobeast.common.errors import RemoteProtocolError
from zerobeast.common.transport import CHUNK_BYTES, Context, Incoming, Poller, WeightsSubscriber, checksum
from zerobeast.tools.bench.processes import Leash, say

MAX_WAIT_S = 0.1


def subscribe(pipe: Connection, endpoint: str, n_bytes: int) -> None:
    """Tell [version, monotonic seconds] of every version that has arrived whole, until the pipe ends."""
    context, leash = Context(), Leash(pipe)
    port = WeightsSubscriber(context, endpoint)
    poller, buffer = Poller([port]), np.zeros(n_bytes, np.uint8)
    try:
        while not leash.gone(time.monotonic()):
            poller.wait(MAX_WAIT_S)
            while message := port.receive():
                say(pipe, [_take(message, buffer), time.monotonic()])
    finally:
        port.close()
        context.term()


def _take(message: Incoming, buffer: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> int:
    """Fill the buffer and return the version, which is what it says it is."""
    version, _, n_bytes, expected, n_chunks = message.header.body
    for index in range(n_chunks):
        chunk = buffer[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
        if not message.into(chunk, last=index == n_chunks - 1):
            raise RemoteProtocolError("weights arrived in chunks of another size", "payload")
    if n_bytes != buffer.nbytes or checksum(buffer) != expected:
        raise RemoteProtocolError(f"version {version} of the weights fails its checksum", "checksum")
    return int(version)
