"""Sockets at which libraries listen in this process: they are found, and closed to all that is not connected yet."""

import ctypes
import logging
import os
import socket
import struct
from typing import Any

import psutil

log = logging.getLogger(__name__)

_ATTACH_FILTER = 26  #: SO_ATTACH_FILTER of Linux
#: a program for that: pass on 0 bytes of any packet
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))


def find_listening() -> set[int]:
    """Descriptors of this process at which tcp connections are accepted."""
    return {each.fd for each in _connections() if each.status == psutil.CONN_LISTEN}


def close_to_others(descriptor: int) -> int:
    """Accept no further connection at a socket that a library goes on using; returns how many there are, which stay."""
    program = struct.pack("HL", 1, ctypes.addressof(_DROP_ALL))
    with socket.socket(fileno=os.dup(descriptor)) as same:
        place = same.getsockname()[:2]
        try:
            same.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
        except OSError as error:  # a kernel without such filters
            log.warning("%s:%d stays open to others, since this kernel filters no packets: %s", *place, error.strerror)
    return sum(each.status == psutil.CONN_ESTABLISHED and each.laddr == place for each in _connections())


def _connections() -> list[Any]:
    return psutil.Process().net_connections("tcp")
