"""Sockets at which libraries listen in this process: they are found, and closed to all that is not connected yet."""

import ctypes
import os
import socket
import struct

import psutil

_ATTACH_FILTER = 26  #: SO_ATTACH_FILTER of Linux
#: a program for that: pass on 0 bytes of any packet
_NOTHING = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))


def listening() -> set[int]:
    """Descriptors of this process at which tcp connections are accepted."""
    found = psutil.Process().net_connections("tcp")
    return {each.fd for each in found if each.status == psutil.CONN_LISTEN}


def close_to_others(descriptor: int) -> None:
    """Accept no further connection at a socket that a library goes on using; those that there are stay."""
    with socket.socket(fileno=os.dup(descriptor)) as same:
        program = struct.pack("HL", 1, ctypes.addressof(_NOTHING))
        same.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
