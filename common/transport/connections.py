"""The connections that a bound socket has accepted, found among the files of its process: libzmq lists none."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import sys
import termios
from collections.abc import Iterator

import zmq


def connections(bound: zmq.Socket[bytes]) -> Iterator[socket.socket]:
    """Each connection that a bound tcp or ipc socket has at present, as a duplicate that is closed afterwards."""
    place = str(bound.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")
    try:
        files = os.listdir("/proc/self/fd")
    except OSError:  # no file is left to read them with
        return
    for name in files:
        try:
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                connection.getpeername()
                here = connection.getsockname()
                if place == f"ipc://{here}" or (isinstance(here, tuple) and place.endswith(f":{here[1]}")):
                    yield connection
        except OSError:  # one that listens, or closed meanwhile
            continue


def unsent(connection: socket.socket) -> int:
    """Bytes that the kernel holds because the peer has not taken them."""
    return int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
